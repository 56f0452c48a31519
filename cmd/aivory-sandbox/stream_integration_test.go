//go:build integration

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// sse is one server-sent event.
type sse struct{ name, data string }

// follow runs a program and calls on for each event as it comes, until the last
// or until on returns false.
func (s testSession) follow(ctx context.Context, code string, on func(sse) bool) error {
	body, err := json.Marshal(map[string]any{"session_id": s.id, "code": code})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/exec/stream", strings.NewReader(string(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	resp, err := s.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("status %d: %s", resp.StatusCode, text)
	}
	var e sse
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF && line == "" {
			return nil
		}
		if err != nil {
			return err
		}
		switch name, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); {
		case line == "\n":
			if !on(e) {
				return nil
			}
			e = sse{}
		case name == "event":
			e.name = rest
		case name == "data":
			e.data = rest
		}
	}
}

func (e sse) text() string {
	var v struct{ Text string }
	_ = json.Unmarshal([]byte(e.data), &v)
	return v.Text
}

func TestStreaming(t *testing.T) {
	s := sharedService(t).session(t)
	t.Run("lines come as they are printed", func(t *testing.T) {
		var late []time.Duration
		var names []string
		var line string
		var last result
		err := s.follow(t.Context(), `
import sys, time
for _ in range(7):
    print(time.time())
    time.sleep(0.15)
print("中", end="", file=sys.stderr)
open("/workspace/outputs/a.txt", "w").write("hello")`, func(e sse) bool {
			if names = append(names, e.name); e.name == "stdout" {
				// Python writes a line and its end in two steps, unbuffered.
				line += e.text()
				if !strings.HasSuffix(line, "\n") {
					return true
				}
				printed, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
				if err != nil {
					t.Errorf("a line: %q", line)
				}
				late, line = append(late, time.Since(time.UnixMicro(int64(printed*1e6)))), ""
			}
			if e.name == "result" {
				last, _ = parseResult(answer{status: 200, body: []byte(e.data)})
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("late by %v", late)
		slices.Sort(late)
		if len(late) != 7 || late[3] > 100*time.Millisecond {
			t.Errorf("lines came %v after they were printed", late)
		}
		if n := len(names); n < 3 || !slices.Equal(names[n-3:], []string{"stderr", "artifact", "result"}) {
			t.Errorf("events: %q", names)
		}
		if len(last.Files) != 1 || string(last.Files[0].Data) != "hello" || last.Stderr != "中" || strings.Count(last.Stdout, "\n") != 7 {
			t.Errorf("the result: %v", last)
		}
	})
	t.Run("cancel", func(t *testing.T) {
		began := time.Now()
		var last sse
		err := s.follow(t.Context(), "import time\nprint('on')\ntime.sleep(60)", func(e sse) bool {
			if last = e; e.name == "stdout" {
				if a := s.post("/exec/cancel", map[string]any{"session_id": s.id}); string(a.body) != `{"ok":true,"cancelled":true}` {
					t.Errorf("cancel: %v", a)
				}
			}
			return true
		})
		if err != nil || last.name != "result" || !strings.Contains(last.data, `"exit_code":130`) || !strings.Contains(last.data, `"reason":"cancelled"`) ||
			!strings.Contains(last.data, "KeyboardInterrupt") || time.Since(began) > 20*time.Second {
			t.Errorf("%v after %v: %+v", err, time.Since(began), last)
		}
		if a := s.post("/exec/cancel", map[string]any{"session_id": s.id}); string(a.body) != `{"ok":true,"cancelled":false}` {
			t.Errorf("cancel without a run: %v", a)
		}
		s.alive(t)
	})
	t.Run("a client that leaves ends its run", func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		_ = s.follow(ctx, "import signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\nprint('on')\ntime.sleep(60)", func(e sse) bool {
			leave()
			return false
		})
		began := time.Now()
		s.alive(t)
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("the session was held for %v", took)
		}
	})
	t.Run("what a run was like", func(t *testing.T) {
		for _, test := range []struct{ code, reason string }{
			{"raise SystemExit(3)", "exit"}, {"import os; os.kill(os.getpid(), 9)", "signal"}, {"x = bytearray(8 << 30); x[::4096] = b'x' * len(x[::4096])", ""},
		} {
			r := s.run(t, test.code, 0)
			var added struct {
				Reason string `json:"reason"`
				Usage  *struct {
					Wall float64 `json:"wall_seconds"`
				} `json:"usage"`
			}
			if err := json.Unmarshal(r.raw, &added); err != nil || test.reason != "" && added.Reason != test.reason || added.Usage == nil || added.Usage.Wall <= 0 {
				t.Errorf("%s: %s", test.code, r.raw)
			}
		}
	})
}
