package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestScriptsSayWhatTheyDo: asked for help, they do nothing else.
func TestScriptsSayWhatTheyDo(t *testing.T) {
	for name, want := range map[string]string{
		"run.sh": "Builds the service and runs it", "sidecar-image.sh": "sidecar-image.sh [TAG]", "replay-cases.sh": "replay-cases.sh [--cases DIR]",
	} {
		for _, flag := range []string{"-h", "--help"} {
			cmd := exec.Command("bash", "../../scripts/"+name, flag)
			// What a script would do needs programs: there are none but sed and dirname.
			cmd.Env = append(os.Environ(), "PATH="+onlyPrograms(t, "sed", "dirname"))
			out, err := cmd.CombinedOutput()
			if err != nil || !strings.Contains(string(out), want) || strings.Contains(string(out), "set -e") || strings.HasPrefix(string(out), "#") {
				t.Errorf("%s %s: %v, says\n%s", name, flag, err, out)
			}
		}
	}
	for _, name := range []string{"run.sh", "sidecar-image.sh"} {
		cmd := exec.Command("bash", "../../scripts/"+name, "--hlep")
		cmd.Env = append(os.Environ(), "PATH="+onlyPrograms(t, "sed", "dirname"))
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "--hlep") {
			t.Errorf("%s with a flag that it has not: %v, says\n%s", name, err, out)
		}
	}
}

// onlyPrograms returns a directory with links to programs.
func onlyPrograms(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, dir+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
