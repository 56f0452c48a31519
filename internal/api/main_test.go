package api

import (
	"testing"

	"go.uber.org/goleak"
)

// A connection that the server closes early lasts for another half a second, also
// where the server itself is closed.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
