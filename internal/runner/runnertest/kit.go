package runnertest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// What follows is for tests of one driver alone, beside the suite.

// Main runs a package's tests. They fail where goroutines are left, or anything
// that leftovers, which may be nil, finds then.
func Main(m *testing.M, leftovers func() ([]string, error)) {
	code := m.Run()
	if leftovers != nil {
		if left, err := leftovers(); err != nil || len(left) > 0 {
			fmt.Fprintln(os.Stderr, "left behind:", left, err)
			code = 1
		}
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// Image is the reference of the image to test with.
func Image() string {
	if image := os.Getenv("AIVORY_TEST_IMAGE"); image != "" {
		return image
	}
	return "aivory-sandbox:latest"
}

// CacheDir is where this repository's scripts keep what they fetch and unpack.
func CacheDir(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("AIVORY_CACHE_DIR"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "aivory-sandbox")
}

// Program finds a program on the path, or where the scripts put it.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		path, err = exec.LookPath(filepath.Join(CacheDir(t), "bin", name))
	}
	if err != nil {
		t.Fatalf("no %s, which scripts/test.sh would have made ready: %v", name, err)
	}
	return path
}

// RandomHex returns 2*n random digits: n = 16 is a session's id.
func RandomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Spec is what the tests make a runner from.
func Spec(limits runner.Limits) runner.Spec {
	return runner.Spec{SessionID: RandomHex(16), CreatedAt: time.Unix(1_700_000_000, 0), Limits: limits}
}

// Create makes a runner that goes with the test, and sees to it that it does.
func Create(t testing.TB, d runner.Driver, limits runner.Limits) (id string, spec runner.Spec) {
	t.Helper()
	spec = Spec(limits)
	id, err := d.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Remove(t, d, id) })
	return id, spec
}

// Remove destroys a runner, which must not be listed any more then.
func Remove(t testing.TB, d runner.Driver, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.Destroy(ctx, id); err != nil {
		t.Error(err)
	}
	if _, listed := find(t, ctx, d, id); listed {
		t.Errorf("runner %s was left behind", id)
	}
}

// Find returns a runner as it is listed, and whether it is.
func Find(t testing.TB, d runner.Driver, id string) (runner.Instance, bool) {
	t.Helper()
	return find(t, t.Context(), d, id)
}

func find(t testing.TB, ctx context.Context, d runner.Driver, id string) (runner.Instance, bool) {
	t.Helper()
	list, err := d.List(ctx)
	if err != nil {
		t.Error(err)
	}
	i := slices.IndexFunc(list, func(in runner.Instance) bool { return in.ID == id })
	if i < 0 {
		return runner.Instance{}, false
	}
	return list[i], true
}

// Command runs a command in a runner as an agent would be, to its end, and
// returns what it prints.
func Command(t testing.TB, d runner.Driver, id string, command ...string) string {
	t.Helper()
	return commandWith(t, d, id, "", command...)
}

// Python is Command for a program that is run as it is, without an agent.
func Python(t testing.TB, d runner.Driver, id, code string) string {
	t.Helper()
	return Command(t, d, id, "python3", "-c", code)
}

func commandWith(t testing.TB, d runner.Driver, id, input string, command ...string) string {
	t.Helper()
	s, err := d.Dial(t.Context(), id, command, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := io.WriteString(s, input); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(s)
	if err != nil {
		t.Fatalf("%s: %v; it said %q", strings.Join(command, " "), err, s.Diagnostics())
	}
	if said := s.Diagnostics(); said != "" {
		t.Logf("%q said %q", command[0], said)
	}
	return string(out)
}
