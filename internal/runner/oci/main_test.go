package oci_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// leftovers names what the tests left on the host. Only the integration tests
// set it.
var leftovers func() ([]string, error)

func TestMain(m *testing.M) {
	code := m.Run()
	if leftovers != nil {
		left, err := leftovers()
		if err != nil || len(left) > 0 {
			fmt.Fprintln(os.Stderr, "left on the host:", left, err)
			code = 1
		}
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}
