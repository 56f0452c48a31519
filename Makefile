# Two targets do everything on a bare Debian machine with Go: run and test. They
# install and start what is missing; running them again costs nothing.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := -s -w $(if $(VERSION),-X main.version=$(VERSION))
export PATH := $(PATH):/usr/local/go/bin

.PHONY: help run test soak bench build image release lint fmt clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

run: ## build and run the service on 127.0.0.1:48217, with all that it needs
	@scripts/run.sh

test: ## format, vet, lint, unit and integration tests
	@scripts/test.sh

soak: ## the same tests with long counts: hours rather than minutes
	@AIVORY_SOAK=1 AIVORY_TEST_TIMEOUT=6h scripts/test.sh

bench: ## benchmarks on a real runner
	@scripts/docker.sh && images/runner/build.sh
	go test -tags integration -run '^$$' -bench . -benchmem ./cmd/... ./internal/...

build: ## compile the service to bin/aivory-sandbox
	@CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/aivory-sandbox ./cmd/aivory-sandbox

image: ## build the runner image, if it is missing or its inputs changed
	@scripts/docker.sh && images/runner/build.sh

release: ## make dist/: archives, images, checksums, lists of contents
	@scripts/release.sh

lint: ## vet, staticcheck and a look at the workflows
	@scripts/lint.sh

fmt: ## format the Go code
	gofmt -w client cmd internal

clean: ## remove what was built; images and downloaded packages stay
	rm -rf bin dist
