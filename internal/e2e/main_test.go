package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/pitonlock/piton/internal/servertest"
)

// helpers are the programs that this test binary can be instead of the tests:
// separate processes that a test stops, kills or lets talk to a server.
var helpers = map[string]func() error{}

const helperVariable = "PITON_E2E_HELPER"

func TestMain(m *testing.M) {
	if name := os.Getenv(helperVariable); name != "" {
		helper, ok := helpers[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "unknown helper %q\n", name)
			os.Exit(64)
		}
		if err := helper(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(servertest.Main(m))
}
