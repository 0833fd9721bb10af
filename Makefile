# Everything that is done to this repository, by name. `make help` lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := build

MODULE  := github.com/application-grid/application-grid
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X $(MODULE)/pkg/program/version.version=$(VERSION)
BIN     := $(CURDIR)/bin
# The product's module, and the others of this repository: the embedded cluster with its tests, the linters, the
# generator, what makes images and releases, helm.
MODULES := . test hack/tools hack/generate hack/image hack/release hack/helm hack/mutate
# What the programs of the embedded cluster say of themselves. kubeadm and the kubelet insist on it.
KUBERNETES = $(eval KUBERNETES := $(shell go -C test list -m -f '{{.Version}}' k8s.io/kubernetes))$(KUBERNETES)
CLUSTER_LDFLAGS = -s -w $(foreach p,k8s.io/component-base/version k8s.io/client-go/pkg/version,-X $(p).gitVersion=$(KUBERNETES) \
	-X $(p).gitMajor=$(word 1,$(subst ., ,$(KUBERNETES:v%=%))) -X $(p).gitMinor=$(word 2,$(subst ., ,$(KUBERNETES))))
# Further modules, each only the go.mod and go.sum of one release of kube-proxy. They are not among MODULES: `go mod
# tidy` of one that was not built here before downloads 149 modules of 124 MB, which `make verify` does not spend on
# what only `make compat` builds. That checks them itself.
KUBE_PROXY_MODULES := $(patsubst %/go.mod,%,$(wildcard test/compat/kube-proxy-*/go.mod))

# Nothing here needs C but the race detector. One value for all: with another, Go builds everything again.
export CGO_ENABLED := 0
export PREFIX SYSCONFDIR DESTDIR

.PHONY: help
help: ## Lists the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

.PHONY: build
build: ## Builds the product's binaries into bin/.
	@hack/gobuild.sh "building application-grid" . -ldflags='$(LDFLAGS)' -o=$(BIN)/ ./cmd/...

# Platforms of the images, as they are named in dist/bin. -trimpath, and no stamp of the repository's state: the same
# bytes come of every directory.
PLATFORMS := linux_amd64 linux_arm64 linux_arm_v7
PROGRAMS  := $(patsubst build/%.Dockerfile,%,$(wildcard build/*.Dockerfile))
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

.PHONY: cross
cross: ## Builds the product for every platform of the images, into dist/bin/.
	@rm -rf dist/bin
	@$(foreach p,$(PLATFORMS),hack/progress.sh "building for $(p)" \
		env GOOS=$(word 1,$(subst _, ,$(p))) GOARCH=$(word 2,$(subst _, ,$(p))) GOARM=$(patsubst v%,%,$(word 3,$(subst _, ,$(p)))) \
		go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o dist/bin/$(p)/ ./cmd/... &&) true

.PHONY: images
images: cross ## Makes the images of build/*.Dockerfile without a container engine, into dist/images/, as OCI archives: VERSION=v1 REGISTRY=registry.example.org.
	@go -C hack/image build -o $(BIN)/image .
	@$(foreach p,$(PROGRAMS),SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(BIN)/image --name $(p) --version $(VERSION) \
		--registry '$(REGISTRY)' --dockerfile build/$(p).Dockerfile --binaries dist/bin --archive dist/images/$(p).tar &&) true

.PHONY: local-images
local-images: build ## Makes the images for this machine's platform of what is built already, in seconds: VERSION=v1 REGISTRY=registry.example.org.
	@go -C hack/image build -o $(BIN)/image .
	@$(foreach p,$(PROGRAMS),install -D $(BIN)/$(p) dist/local/linux_$$(go env GOARCH)/$(p) && \
		SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(BIN)/image --name $(p) --version $(VERSION) --registry '$(REGISTRY)' \
		--dockerfile build/$(p).Dockerfile --binaries dist/local --archive dist/images/$(p).tar &&) true

# Platforms that have kubectl-grid and no other program.
PLUGIN_PLATFORMS := darwin_amd64 darwin_arm64 windows_amd64 windows_arm64
PLUGIN := kubectl-grid

.PHONY: plugins
plugins: ## Builds kubectl-grid for the platforms of those who use it, into dist/plugins/.
	@rm -rf dist/plugins && mkdir -p dist/plugins
	@$(foreach p,$(PLUGIN_PLATFORMS),hack/progress.sh "building $(PLUGIN) for $(p)" \
		env GOOS=$(word 1,$(subst _, ,$(p))) GOARCH=$(word 2,$(subst _, ,$(p))) \
		go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o dist/plugins/$(p)/ ./cmd/$(PLUGIN) &&) true

COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
# Who builds, for the provenance statement; a release's workflow says so.
BUILDER ?=

.PHONY: release
release: ## Makes a release into dist/release/: VERSION=v1.2.3 REGISTRY=registry.example.org. SNAPSHOT=1 for a try.
	@go -C hack/release build -o $(BIN)/release .
	@$(BIN)/release check --version '$(if $(filter command line environment,$(origin VERSION)),$(VERSION))' $(if $(SNAPSHOT),--snapshot)
	@$(MAKE) --no-print-directory release-files

# As release, without asking whether it may be.
.PHONY: release-files
release-files: images plugins $(BIN)/licences
	@go -C hack/release build -o $(BIN)/release .
	@$(BIN)/licences -spdx dist/licences.json ./cmd/...
	@SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(BIN)/release make --version '$(VERSION)' --registry '$(REGISTRY)' --commit '$(COMMIT)' --builder '$(BUILDER)'

# Everything that a release's bytes depend on, for the second time.
SAME = VERSION='$(VERSION)' REGISTRY='$(REGISTRY)' COMMIT='$(COMMIT)' BUILDER='$(BUILDER)' SOURCE_DATE_EPOCH='$(SOURCE_DATE_EPOCH)' \
	PLATFORMS='$(PLATFORMS)' PLUGIN_PLATFORMS='$(PLUGIN_PLATFORMS)'

.PHONY: release-twice
release-twice: release ## Makes a release twice, the second time elsewhere and of nothing that is built, and compares.
	@$(BIN)/release twice $(SAME)

.PHONY: push
push: ## Pushes the images of dist/release to the registry that they were made for, and prints their digests.
	@go -C hack/release build -o $(BIN)/release .
	@$(BIN)/release push

.PHONY: test-release
test-release: $(BIN)/helm $(BIN)/ctr ## Makes a release of one platform twice, and tests what is in it. Needs root.
	@$(MAKE) --no-print-directory release-twice VERSION=v0.0.0-test.1 REGISTRY= SNAPSHOT=1 \
		PLATFORMS=linux_$$(go env GOARCH) PLUGIN_PLATFORMS=
	BIN=$(BIN) go -C hack/release test -count=1 ./... $(ARGS)

# Prometheus is built for nothing else, so that this checks its module, and `make verify` does not.
.PHONY: test-monitoring
test-monitoring: ## Loads alerts, dashboard and scrape configurations into Prometheus' own code, and checks the dashboard by Grafana's types.
	@hack/require.sh node:nodejs npm:npm
	@go -C test/monitoring mod tidy -diff || { echo "run go mod tidy in test/monitoring"; exit 1; }
	@npm --prefix test/monitoring/grafana ci --ignore-scripts --no-audit --no-fund --silent
	@hack/progress.sh "building what is of Prometheus (about 4 minutes on 2 cores when nothing is built yet)" \
		go -C test/monitoring test -count=1 ./... $(ARGS)

.PHONY: test-images
test-images: cross ## Runs what is in the images, as they would be run. Needs root.
	@hack/require.sh qemu-arm-static:qemu-user-static
	go -C hack/image test -count=1 ./... $(ARGS)

.PHONY: install
install: build ## Installs programs, man pages and systemd units: PREFIX=/usr/local, SYSCONFDIR=/etc, DESTDIR=.
	@hack/install.sh install

.PHONY: uninstall
uninstall: ## Removes what make install installed; says what it keeps.
	@hack/install.sh uninstall

.PHONY: cluster
cluster: ## Builds the embedded cluster into bin/: etcd, Kubernetes, kwok. Minutes when cold, seconds later.
	@hack/gobuild.sh "building the embedded cluster" test -ldflags='$(CLUSTER_LDFLAGS)' -o=$(BIN)/ ./cmd/...

# The real helm, for the tests of the chart.
$(BIN)/helm: hack/helm/go.mod hack/helm/go.sum
	@hack/gobuild.sh "building helm" hack/helm -ldflags='-s -w' -o=$@ helm.sh/helm/v4/cmd/helm

# What the tests on clusters need of this machine. It is the first prerequisite of their targets, and of `make test`, so
# that what is missing is named before anything is built.
.PHONY: needs-nodes needs-e2e needs-skew needs-kubeadm needs-cilium
needs-nodes:
	@hack/require.sh --nodes
needs-e2e:
	@hack/require.sh --nodes systemd-analyze:systemd curl:curl mkfs.ext4:e2fsprogs chromium:chromium node:nodejs npm:npm
needs-skew:
	@hack/require.sh --nodes git:git
needs-kubeadm:
	@hack/require.sh --nodes runc:runc /usr/lib/cni/bridge:containernetworking-plugins nsenter:util-linux ethtool:ethtool \
		socat:socat jq:jq curl:curl
needs-cilium:
	@hack/require.sh --nodes clang-19:clang-19 llc-19:llvm-19 nsenter:util-linux curl:curl

.PHONY: test
test: needs-e2e ## Runs all tests. Needs root for the end-to-end part, which waits half of the time: the rest runs beside it.
	@$(MAKE) --no-print-directory --jobs=2 test-unit test-e2e

# `go test` in a directory as all tests are run: without vet, which `make lint` has with more analysers and which
# type-checks every dependency for it, and without what a debugger needs, which is half of the linker's work. The
# compiler, the linker, the tests and what they run of Kubernetes (test/cluster) collect their garbage four times as rarely
# as they would by themselves, which takes a quarter off their work, unless one of them needs more than 1 GB for that.
GO_TEST = GOGC=400 GOMEMLIMIT=1GiB go test -C $(or $(1),.) -vet=off -ldflags=-w

# Packages in which nothing runs at the same time, not even in their tests. The race detector would make their random
# worlds five to eight times slower, and has nothing to detect.
SEQUENTIAL = ./pkg/autonomy/livepods ./pkg/gridcontroller/rollout ./pkg/program/store ./pkg/storage/history \
	./pkg/storage/snapshot ./pkg/topology ./pkg/gridview ./pkg/storage/facts ./pkg/storage/wire ./pkg/apis/enumerate \
	./pkg/apis/superedge.io/v1 ./pkg/gridcontroller/gridchild ./pkg/gridcontroller/gridrevision \
	./pkg/gridcontroller/kubeproxy ./pkg/program/pages ./pkg/program/flags ./pkg/program/nodename
# A package whose worlds are shorter with the race detector, and are played whole without it as well.
WORLDS = ./pkg/autonomy/exchange
# The rest. Those of which the race detector takes longest begin first.
CONCURRENT = $(addprefix $(MODULE)/pkg/,gridcontroller autonomy/exchange lite hub serve) \
	$(filter-out $(SEQUENTIAL:./%=$(MODULE)/%),$(shell go list ./...))

# The race detector crashes where two goroutines of a bubble of testing/synctest let timers fire at the same time
# (golang/go#78156: they share its state). On one processor they cannot, and it orders events just as well. Several
# packages are tested at the same time anyway.
RACE_TEST = $(GO_TEST) -race -cpu 1 -timeout 20m

.PHONY: test-unit
test-unit: ## Runs the unit tests. PKG=./pkg/storage/... for some of them, RACE=1 for the race detector, as CI does. Needs no root.
ifdef RACE
	@hack/require.sh gcc:gcc /usr/include/stdlib.h:libc6-dev
	@! grep -nE '\bgo (func|[A-Za-z.]+\()|\.Go\(|t\.Parallel\(|net/http' $(SEQUENTIAL:=/*.go) || \
		{ echo "These lines run something at the same time: take their package out of SEQUENTIAL in the Makefile"; exit 1; }
	@CGO_ENABLED=1 hack/gobuild.sh "building with the race detector" . -race $(or $(PKG),$(CONCURRENT))
	CGO_ENABLED=1 $(RACE_TEST) $(or $(PKG),$(CONCURRENT))
	$(if $(PKG),,$(GO_TEST) -timeout 20m $(SEQUENTIAL) $(WORLDS))
else
	$(GO_TEST) -timeout 20m $(or $(PKG),./...)
endif
	$(if $(PKG),,$(call GO_TEST,hack/tools) ./...)

# What tests on the embedded cluster are run with: where the binaries are, and three packages at once, each with a cluster
# of its own: they wait most of the time.
ON_CLUSTER = COMPONENTS_BIN=$(BIN)/components WRAPPER_BIN=$(BIN)/application-grid-wrapper CONTROLLER_BIN=$(BIN)/application-grid-controller \
	HUB_BIN=$(BIN)/application-grid-hub $(call GO_TEST,test) -count=1 -p 3 -timeout 60m

# The packages that take longest begin first.
LONGEST = ./e2e ./e2e/grid ./faults ./e2e/install

.PHONY: test-e2e
test-e2e: needs-e2e build cluster $(BIN)/helm ## Runs the end-to-end tests, the short fault suite and the commands of the pages on the embedded cluster. Needs root.
	@npm --prefix test/e2e/dashboard/axe ci --ignore-scripts --no-audit --no-fund --silent
	$(ON_CLUSTER) -short $(LONGEST) ./rule/... ./plugin ./e2e/... ./faults/... ./docs/... $(ARGS)

.PHONY: diagram
diagram: ## Draws docs/sites.svg, the picture at the top of the README.
	go run ./hack/diagram -write

.PHONY: picture
picture: build cluster ## Makes docs/dashboard.png, the picture of kubectl grid dashboard that the README shows.
	@hack/require.sh chromium:chromium node:nodejs npm:npm
	@npm --prefix test/e2e/dashboard/axe ci --ignore-scripts --no-audit --no-fund --silent
	DASHBOARD_PICTURE=1 $(ON_CLUSTER) -run 'TestPicture$$' ./e2e/dashboard

.PHONY: test-faults
test-faults: needs-nodes build cluster ## Runs the whole fault suite, 20 minutes. ARGS='-run TestLink -short' for less. Needs root.
	$(ON_CLUSTER) ./faults/... $(ARGS)

# Hours of faults that do not end; 0.05 is a try.
HOURS ?= 2

.PHONY: soak
soak: needs-nodes build cluster ## Runs wrapper and hub for hours under faults, and judges what grows and what fails: HOURS=2. Needs root.
	$(ON_CLUSTER) -timeout 0 -v ./soak -hours=$(HOURS) $(ARGS)

.PHONY: test-skew
test-skew: needs-skew build cluster ## Runs older programs beside today's, both ways, with traffic: those of hack/skew-commit. Needs root.
	@code=0; hack/skew.sh $(BIN)/older || code=$$?; if [ $$code -eq 3 ]; then echo "make test-skew is left out"; exit 0; fi; \
		[ $$code -eq 0 ] && OLDER_BIN=$(BIN)/older $(ON_CLUSTER) -v ./skew $(ARGS)

# What a kubeadm cluster needs of this machine, and what runs containers there. The module is checked here and not by
# `make verify`, which does not download what only this builds.
CONTAINERD_MODULE := test/kubeadm/containerd

.PHONY: kubeadm-programs
kubeadm-programs: needs-kubeadm build cluster
	@go -C $(CONTAINERD_MODULE) mod tidy -diff || { echo "run go mod tidy in $(CONTAINERD_MODULE)"; exit 1; }
	@hack/gobuild.sh "building containerd" $(CONTAINERD_MODULE) -tags=no_btrfs,no_devmapper,no_zfs,no_aufs -ldflags='-s -w' -o=$(BIN)/ tool
	@go -C hack/image build -o $(BIN)/image .

# The product's images for the tests on such clusters, which can run at the same time.
.PHONY: kubeadm-images
kubeadm-images: kubeadm-programs
	@$(MAKE) --no-print-directory local-images VERSION=v1 REGISTRY=registry.example.org

$(BIN)/ctr: $(CONTAINERD_MODULE)/go.mod $(CONTAINERD_MODULE)/go.sum
	@hack/gobuild.sh "building containerd" $(CONTAINERD_MODULE) -tags=no_btrfs,no_devmapper,no_zfs,no_aufs -ldflags='-s -w' -o=$(BIN)/ tool

.PHONY: kubeadm
kubeadm: kubeadm-programs ## Starts a cluster that kubeadm makes, with kubelets and containers, until Ctrl-C. Needs root.
	@$(BIN)/kubeadm-cluster up $(ARGS)

.PHONY: test-kubeadm
test-kubeadm: kubeadm-images ## Runs the pages about kubeadm on such a cluster, with traffic, 11 minutes. ARGS=-lite.removals=15 for more power cuts. Needs root.
	@echo "A control-plane node and two workers of namespaces, cgroups and containers are built on this machine, and removed."
	BIN=$(BIN) go -C test test -count=1 -timeout 30m -v ./kubeadm $(ARGS)

.PHONY: test-k3s
test-k3s: kubeadm-images ## Runs docs/k3s.md on a cluster of k3s' shape, with traffic. It has a stand-in for k3s. Needs root.
	@echo "A server and two agents of namespaces, cgroups and containers are built on this machine, and removed."
	BIN=$(BIN) go -C test test -count=1 -timeout 20m -v ./k3s/... $(ARGS)

# The agent of Cilium, which is checked here and not by `make verify`, which does not download what only this builds.
CILIUM_MODULE := test/cilium/agent

$(BIN)/cilium: $(CILIUM_MODULE)/go.mod $(CILIUM_MODULE)/go.sum
	@go -C $(CILIUM_MODULE) mod tidy -diff || { echo "run go mod tidy in $(CILIUM_MODULE)"; exit 1; }
	@mkdir -p $@
	@hack/gobuild.sh "building Cilium's agent" $(CILIUM_MODULE) -ldflags='-s -w' -o=$@/ tool
	@touch $@

.PHONY: test-cilium
test-cilium: needs-cilium build cluster $(BIN)/cilium ## Runs a real cilium-agent directly and through the wrapper, 6 minutes. Needs root, clang-19, llvm-19 and BPF.
	$(ON_CLUSTER) ./cilium $(ARGS)

# An ingress controller of Traefik's provider, which is checked here and not by `make verify`, which does not download what
# only this builds.
TRAEFIK_MODULE := test/ingress/traefik

$(BIN)/traefik: $(wildcard $(TRAEFIK_MODULE)/*)
	@go -C $(TRAEFIK_MODULE) mod tidy -diff || { echo "run go mod tidy in $(TRAEFIK_MODULE)"; exit 1; }
	@hack/gobuild.sh "building an ingress controller" $(TRAEFIK_MODULE) -ldflags='-s -w' -o=$@ .

.PHONY: test-ingress
test-ingress: needs-nodes build cluster $(BIN)/traefik ## Runs an ingress controller of Traefik's provider through the wrapper, 1 minute. Needs root.
	$(ON_CLUSTER) ./ingress $(ARGS)

# SuperEdge's own controller and daemon of hosts files, which docs/migrate.md takes over from and goes back to. The module is
# checked here and not by `make verify`, which does not download what only this builds.
SUPEREDGE_MODULE   := test/takeover/superedge
SUPEREDGE_PROGRAMS := application-grid-controller statefulset-grid-daemon

$(BIN)/superedge: $(SUPEREDGE_MODULE)/go.mod $(SUPEREDGE_MODULE)/go.sum
	@go -C $(SUPEREDGE_MODULE) mod tidy -diff || { echo "run go mod tidy in $(SUPEREDGE_MODULE)"; exit 1; }
	@mkdir -p $@
	@hack/gobuild.sh "building SuperEdge's programs" $(SUPEREDGE_MODULE) -ldflags='-s -w' -o=$@/ $(SUPEREDGE_PROGRAMS:%=github.com/superedge/superedge/cmd/%)
	@touch $@

.PHONY: test-takeover
test-takeover: needs-nodes build cluster $(BIN)/superedge ## Runs docs/migrate.md on the embedded cluster. Needs root.
	$(ON_CLUSTER) ./takeover $(ARGS)

# The packages that decide without asking anybody.
PURE ?= pkg/topology pkg/storage/view pkg/storage/facts:pkg/storage/view pkg/gridcontroller/rollout pkg/gridview \
	pkg/autonomy/livepods pkg/hub pkg/program/store

.PHONY: mutate
mutate: ## Changes the code of the packages that decide, and fails if their tests overlook more than a tenth. PURE=pkg/topology for one of them. Hours.
	@hack/gobuild.sh "building gremlins" hack/mutate -o=$(BIN)/gremlins github.com/go-gremlins/gremlins/cmd/gremlins
	@go -C hack/tools build -o $(BIN)/mutants ./mutants
	@hack/mutate.sh $(PURE)

.PHONY: compat
compat: needs-nodes build cluster $(KUBE_PROXY_MODULES:test/compat/%=$(BIN)/%) ## Runs old kube-proxies and other clients through the wrapper; writes docs/compatibility.md. Needs root.
	@for m in $(KUBE_PROXY_MODULES); do go -C $$m mod tidy -diff || { echo "run go mod tidy in $$m"; exit 1; }; done
	BIN=$(BIN) COMPAT_DOC=$(CURDIR)/docs/compatibility.md go -C test test -count=1 -timeout 30m -v ./compat $(ARGS)

# The version is stamped as in a release's binary: what --version says, and the name by which kube-proxy asks servers.
$(BIN)/kube-proxy-%: test/compat/kube-proxy-%/go.mod test/compat/kube-proxy-%/go.sum
	@version=$$(go -C $(<D) list -m -f '{{.Version}}' k8s.io/kubernetes) && \
		hack/gobuild.sh "building kube-proxy $$version" $(<D) -o=$@ \
		-ldflags="-s -w -X k8s.io/component-base/version.gitVersion=$$version -X k8s.io/client-go/pkg/version.gitVersion=$$version" \
		k8s.io/kubernetes/cmd/kube-proxy

# What the demonstration runs, and no more, of two modules at once (hack/demo/go.work): what was built for one program is
# linked while others are compiled.
DEMO_PROGRAMS = $(addprefix $(MODULE)/cmd/,application-grid-wrapper application-grid-controller application-grid-hub \
	statefulset-grid-daemon) $(addprefix $(MODULE)/test/cmd/,components edge-cluster)

.PHONY: demo-programs
demo-programs:
	@GOWORK=$(CURDIR)/hack/demo/go.work hack/gobuild.sh "building application-grid, and the Kubernetes that it is shown on" hack/demo \
		-tags=demo -ldflags='$(MODULE)/cmd/...=$(LDFLAGS)' \
		-ldflags='$(MODULE)/test/...=$(CLUSTER_LDFLAGS)' -o=$(BIN)/demo/ $(DEMO_PROGRAMS)

.PHONY: demo
demo: demo-programs ## Shows site-local Services on an embedded cluster. ARGS=--once ends by itself.
	@$(BIN)/demo/edge-cluster demo --install $(ARGS)

.PHONY: bench
bench: needs-nodes build cluster ## Compares the wrapper with direct access, measures the controller, and the Go micro-benchmarks.
	go test -run '^$$' -bench . -benchmem ./pkg/...
	@$(BIN)/edge-bench --components $(BIN)/components --wrapper $(BIN)/application-grid-wrapper --controller $(BIN)/application-grid-controller $(ARGS)

.PHONY: test-fleet
test-fleet: build cluster ## Measures the hub once with simulated wrappers of 1,000 nodes, and fails if a change costs a node more than 1/100 of its bytes.
	@$(BIN)/edge-bench --part=hub --components $(BIN)/components --wrapper $(BIN)/application-grid-wrapper --hub $(BIN)/application-grid-hub \
		--nodes=1000 --sites=100 --services=1000 --rate=48 --hub-saving=100

.PHONY: bench-fleet
bench-fleet: build cluster ## Measures the hub with simulated wrappers of a fleet. ARGS='--nodes=10000 --sites=1000 --services=20000' for a large one.
	@$(BIN)/edge-bench --part=hub --components $(BIN)/components --wrapper $(BIN)/application-grid-wrapper --hub $(BIN)/application-grid-hub \
		--nodes=1000 --sites=100 --services=1000 --rate=48 --hub-chart=docs/hub.svg $(ARGS)

.PHONY: lint
lint: $(BIN)/golangci-lint ## Runs the linters of .golangci.yml, at the version pinned in hack/tools.
	$(BIN)/golangci-lint run ./...
	cd test && $(BIN)/golangci-lint run --config $(CURDIR)/.golangci.yml ./...
	cd hack/tools && $(BIN)/golangci-lint run --config $(CURDIR)/.golangci.yml ./...
	cd hack/release && $(BIN)/golangci-lint run --config $(CURDIR)/.golangci.yml ./...

$(BIN)/golangci-lint: hack/tools/go.mod hack/tools/go.sum
	@hack/gobuild.sh "building golangci-lint" hack/tools -o=$(BIN)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

# What is generated from pkg/apis: the copying of types, and the CRDs.
GENERATE = $(BIN)/controller-gen object crd paths=./pkg/apis/... output:crd:dir=manifests/crds

# What the chart has as manifests/ have it. Its templates are written by hand, and test/e2e/install compares what helm makes
# of them with what kustomize makes of manifests/.
CHART := charts/application-grid

.PHONY: generate
generate: $(BIN)/controller-gen ## Generates the CRDs and the copying of API types from pkg/apis, what the chart copies of manifests/, docs/reference.md, and the man pages.
	$(GENERATE)
	cp manifests/crds/superedge.io_*.yaml $(CHART)/crds/
	cp manifests/monitoring/alerts.yaml manifests/monitoring/dashboard.json manifests/kubeadm/kube-proxy-away.yaml $(CHART)/files/
	go test -count=1 -p 1 -run 'TestFlagsReference|TestManual|TestCRDReference' ./cmd/... ./docs -update

$(BIN)/controller-gen: hack/generate/go.mod hack/generate/go.sum
	go -C hack/generate build -o $@ sigs.k8s.io/controller-tools/cmd/controller-gen

# The packages that are built into what is shipped, and the file with the licences that ask to go with them.
NOTICES = THIRD_PARTY_NOTICES ./cmd/...

.PHONY: notices
notices: $(BIN)/licences ## Writes THIRD_PARTY_NOTICES, which goes with the binaries; fails on a licence that forbids that.
	$(BIN)/licences -write $(NOTICES)

$(BIN)/licences: $(wildcard hack/tools/licences/*.go) hack/tools/go.mod hack/tools/go.sum
	go -C hack/tools build -o $@ ./licences

.PHONY: vulncheck
vulncheck: ## Looks for known vulnerabilities that the code reaches. VULNDB=file:///DIR asks a copy of the database.
	@hack/vulncheck.sh ./...

$(BIN)/govulncheck: hack/tools/go.mod hack/tools/go.sum
	@hack/gobuild.sh "building govulncheck" hack/tools -o=$(BIN)/govulncheck golang.org/x/vuln/cmd/govulncheck

.PHONY: verify
verify: $(BIN)/controller-gen $(BIN)/licences ## Checks formatting, go.mod files, generated files, licences and known vulnerabilities.
	@hack/require.sh git:git
	@files=$$(git ls-files '*.go') && [ -n "$$files" ] && unformatted=$$(gofmt -l $$files) || exit 1; \
		if [ -n "$$unformatted" ]; then echo "not formatted, run gofmt -w on: $$unformatted"; exit 1; fi
	@for m in $(MODULES); do go -C $$m mod tidy -diff || { echo "run go mod tidy in $$m"; exit 1; }; done
	@before=$$(mktemp -d) && trap 'rm -rf "$$before"' EXIT && cp -r pkg/apis manifests/crds "$$before" && $(GENERATE) && \
		diff -r pkg/apis "$$before/apis" && diff -r manifests/crds "$$before/crds" || \
		{ echo "generated files were stale, and are fresh now: commit them"; exit 1; }
	$(BIN)/licences -check $(NOTICES)
	@hack/vulncheck.sh ./...

.PHONY: clean
clean: ## Removes what was built.
	rm -rf $(BIN) dist
