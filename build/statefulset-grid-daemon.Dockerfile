# docker buildx build -f build/statefulset-grid-daemon.Dockerfile --platform linux/amd64,linux/arm64,linux/arm/v7
#   --build-arg VERSION=$(git describe --tags --always) .
# make images makes the same image without a container engine: it takes what follows the last FROM from here.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
ARG TARGETOS TARGETARCH TARGETVARIANT VERSION=unknown
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH GOARM=${TARGETVARIANT#v} go build -trimpath -buildvcs=false -ldflags "-s -w -X github.com/application-grid/application-grid/pkg/program/version.version=$VERSION" -o /out/statefulset-grid-daemon ./cmd/statefulset-grid-daemon

FROM scratch
ARG VERSION=unknown
COPY --from=build /out/statefulset-grid-daemon /usr/local/bin/statefulset-grid-daemon
COPY LICENSE THIRD_PARTY_NOTICES /licenses/
LABEL org.opencontainers.image.title="statefulset-grid-daemon"
LABEL org.opencontainers.image.description="Keeps the hosts file of its node's site for CoreDNS"
LABEL org.opencontainers.image.source="https://github.com/application-grid/application-grid"
LABEL org.opencontainers.image.licenses="Apache-2.0"
LABEL org.opencontainers.image.version="$VERSION"
USER 0:0
ENTRYPOINT ["/usr/local/bin/statefulset-grid-daemon"]
