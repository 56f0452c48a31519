package runner

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestAgent runs the agent's own tests.
func TestAgent(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("the agent's tests need python3: ", err)
	}
	// A cached result stands for the files as they are: go test has to see them.
	files, err := filepath.Glob("agent/*.py")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range append(files, "testdata/vectors/frames.jsonl") {
		if _, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, "-B", "-W", "error", "-m", "unittest", "discover", "-s", "agent", "-p", "test_*.py").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}
