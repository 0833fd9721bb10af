# docker buildx build -f build/application-grid-wrapper.Dockerfile --platform linux/amd64,linux/arm64,linux/arm/v7
#   --build-arg VERSION=$(git describe --tags --always) .
# make images makes the same image without a container engine: it takes what follows the last FROM from here.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH TARGETVARIANT VERSION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH GOARM=${TARGETVARIANT#v} go build -trimpath -buildvcs=false -ldflags "-s -w -X github.com/application-grid/application-grid/pkg/program/version.version=$VERSION" -o /out/application-grid-wrapper ./cmd/application-grid-wrapper

FROM scratch
ARG VERSION=unknown
COPY --from=build /out/application-grid-wrapper /usr/local/bin/application-grid-wrapper
COPY LICENSE THIRD_PARTY_NOTICES /licenses/
LABEL org.opencontainers.image.title="application-grid-wrapper"
LABEL org.opencontainers.image.description="Shows kube-proxy the endpoints of its node's own site"
LABEL org.opencontainers.image.source="https://github.com/application-grid/application-grid"
LABEL org.opencontainers.image.licenses="Apache-2.0"
LABEL org.opencontainers.image.version="$VERSION"
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/application-grid-wrapper"]
