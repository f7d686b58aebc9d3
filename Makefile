# make test    what a fresh Debian machine lacks is installed, then every test runs
# make quick   the tests that need no server, under 30 seconds
# make lint    formatting, vet, staticcheck
# make prove   see a phantom write happen, and be stopped

test: servers
	CI=true go vet work
	CI=true go test -race -p 1 -count 1 -timeout 20m work

quick:
	go test ./...

lint:
	test -z "$$(go run mvdan.cc/gofumpt@v0.9.2 -l .)"
	go vet work
	go run honnef.co/go/tools/cmd/staticcheck@v0.7.0 work

prove:
	go run ./cmd/piton prove

servers:
	sh internal/servertest/install.sh

.PHONY: test quick lint prove servers
