package runnertest

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// plainly runs programs from its input as a shell would, `python3 cell.py` in
// the workspace, and answers each with a line of JSON.
const plainly = `
import json, os, subprocess, sys
path = '/tmp/aivory-cell-' + '0' * 32 + '.py'
for line in sys.stdin:
    code = bytes.fromhex(line)
    if not code: break
    with open(path, 'wb') as f: f.write(code[:-1])
    with open('/tmp/out', 'wb') as out, open('/tmp/err', 'wb') as err:
        p = subprocess.Popen(['python3', path], cwd='/workspace', stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        p.wait()
    os.unlink(path)
    result = {'exit': p.returncode if p.returncode >= 0 else 128 - p.returncode}
    for name in ('out', 'err'):
        with open('/tmp/' + name, 'rb') as f: result[name] = f.read().decode('latin-1')
        os.unlink('/tmp/' + name)
    print(json.dumps(result), flush=True)
`

// same are what differs from run to run of the very same thing.
var same = []*regexp.Regexp{
	regexp.MustCompile(`aivory-cell-[0-9a-f]{32}`),
	regexp.MustCompile(`0x[0-9a-f]{6,}`),
	regexp.MustCompile(`Previous line repeated \d+ more times`), // one frame lies below a program
}

func normal(s string) string {
	for _, r := range same {
		s = r.ReplaceAllString(s, "…")
	}
	return s
}

// testProgram runs programs through the agent and as a script in the same
// runner: what they see must be the same.
func testProgram(t *testing.T, s *suite) {
	b := s.sandbox(t, Preload...)
	names := make([]string, 0, len(programs))
	var input strings.Builder
	for name := range programs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&input, "%x\n", programs[name]+"\x00")
	}
	b.run(t, userSite)
	want := strings.Split(b.command(t, input.String()+"\n", "python3", "-c", plainly), "\n")
	if len(want) != len(names)+1 {
		t.Fatalf("%d of %d programs were run plainly: %q", len(want)-1, len(names), want[len(want)-1])
	}
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			s.skip(t)
			var plain struct {
				Exit     int
				Out, Err string
			}
			if err := json.Unmarshal([]byte(want[i]), &plain); err != nil {
				t.Fatal(err)
			}
			o := b.run(t, programs[name], limit(time.Minute))
			if o.ExitCode != plain.Exit || o.Reason == runner.ReasonLost {
				t.Errorf("exit code %d (%s), plainly %d", o.ExitCode, o.Reason, plain.Exit)
			}
			if got, want := normal(o.out), normal(latin1(plain.Out)); got != want {
				t.Errorf("printed\n%s\nplainly\n%s", got, want)
			}
			if got, want := normal(o.err), normal(latin1(plain.Err)); got != want {
				t.Errorf("on stderr\n%s\nplainly\n%s", got, want)
			}
		})
	}
}

// latin1 is the bytes that a text of Latin 1 stands for.
func latin1(s string) string {
	var b []byte
	for _, r := range s {
		b = append(b, byte(r))
	}
	return string(b)
}

// userSite plants packages in the program's own home.
const userSite = `
import os, site
d = site.getusersitepackages(); os.makedirs(d + '/more', exist_ok=True)
open(d + '/mine.py', 'w').write('x = 5')
open(d + '/usercustomize.py', 'w').write('import os; os.environ["CUSTOM"] = "yes"')
open(d + '/paths.pth', 'w').write('more\nimport os; os.environ["PTH"] = "yes"\n')
open(d + '/more/deeper.py', 'w').write('x = 6')
`
