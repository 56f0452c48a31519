package oci_test

import (
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/runner/runnertest"
)

// leftovers names what the tests left on the host. Only the integration tests
// set it.
var leftovers func() ([]string, error)

func TestMain(m *testing.M) { runnertest.Main(m, leftovers) }
