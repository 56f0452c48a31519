package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// writer passes on what is written.
type writer chan string

func (w writer) Write(p []byte) (int, error) { w <- string(p); return len(p), nil }

func event(w http.ResponseWriter, name, data string) {
	_, _ = io.WriteString(w, "event: "+name+"\ndata: "+data+"\n\n")
	_ = http.NewResponseController(w).Flush()
}

func TestFollow(t *testing.T) {
	goOn := make(chan struct{})
	_, c := newServer(t, func(w http.ResponseWriter, r *http.Request, _ map[string]any) {
		w.Header().Set("Content-Type", "text/event-stream")
		event(w, "stdout", `{"text":"a\n"}`)
		<-goOn
		_, _ = io.WriteString(w, ": \n\n")
		event(w, "stderr", `{"text":"é"}`)
		event(w, "unheard-of", `{"text":"`+strings.Repeat("x", 200000)+`"}`)
		event(w, "artifact", `{"path":"d/f.bin","name":"f.bin","mime_type":"m","size":3}`)
		event(w, "result", `{"stdout":"a\n","stderr":"é","exit_code":3,"files":[{"name":"f.bin","mime_type":"m","data_base64":"YWJj"}],"reason":"exit"}`)
	})
	out, err := make(writer, 9), make(writer, 9)
	type done struct {
		r   *Result
		err error
	}
	ended := make(chan done, 1)
	go func() {
		r, e := c.Session(id1).Exec(t.Context(), Run{Code: "x", Stdout: out, Stderr: err})
		ended <- done{r, e}
	}()
	if got := <-out; got != "a\n" { // before the rest is even sent
		t.Errorf("stdout %q", got)
	}
	close(goOn)
	d := <-ended
	if d.err != nil || <-err != "é" || d.r.ExitCode != 3 || len(d.r.Files) != 1 || d.r.Files[0].Path != "d/f.bin" || string(d.r.Files[0].Data) != "abc" {
		t.Errorf("%+v, %v", d.r, d.err)
	}
}

func TestFollowFails(t *testing.T) {
	var say func(w http.ResponseWriter)
	live := true
	_, c := newServer(t, func(w http.ResponseWriter, r *http.Request, _ map[string]any) {
		if r.URL.Path == "/files/list" {
			if live {
				answer(w, 200, `{"files":[]}`)
			} else {
				answer(w, 404, `{"detail":"x"}`)
			}
			return
		}
		say(w)
	})
	for name, test := range map[string]struct {
		live bool
		say  func(http.ResponseWriter)
		want error
	}{
		"a lost session":       {false, func(w http.ResponseWriter) { answer(w, 404, `{"detail":"x"}`) }, ErrSessionLost},
		"an older service":     {true, func(w http.ResponseWriter) { answer(w, 404, `{"detail":"Not Found"}`) }, ErrUnsupported},
		"a full queue":         {true, func(w http.ResponseWriter) { answer(w, 429, `{"detail":"x"}`) }, ErrBusy},
		"a late error":         {true, func(w http.ResponseWriter) { event(w, "error", `{"status":500,"detail":"sandbox runner failed"}`) }, ErrInternal},
		"an end without end":   {true, func(w http.ResponseWriter) { event(w, "stdout", `{"text":"a"}`) }, io.ErrUnexpectedEOF},
		"an end in the result": {true, func(w http.ResponseWriter) { _, _ = io.WriteString(w, "event: result\ndata: {\"stdout\":\"") }, io.ErrUnexpectedEOF},
		"nothing":              {true, func(http.ResponseWriter) {}, io.ErrUnexpectedEOF},
	} {
		live, say = test.live, test.say
		_, err := c.Session(id1).Exec(t.Context(), Run{Stdout: io.Discard})
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFollowIsLeft(t *testing.T) {
	left := make(chan struct{}, 2)
	_, c := newServer(t, func(w http.ResponseWriter, r *http.Request, _ map[string]any) {
		event(w, "stdout", `{"text":"a"}`)
		<-r.Context().Done()
		left <- struct{}{}
	})
	broken := errors.New("pipe is closed")
	if _, err := c.Session(id1).Exec(t.Context(), Run{Stdout: failing{broken}}); !errors.Is(err, broken) {
		t.Errorf("a writer that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out := make(writer, 1)
	time.AfterFunc(0, func() { <-out; cancel() })
	if _, err := c.Session(id1).Exec(ctx, Run{Stdout: out}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	<-left
	<-left
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// FuzzEvents: whatever comes, reading ends.
func FuzzEvents(f *testing.F) {
	f.Add("event: stdout\ndata: {\"text\":\"a\"}\n\n: \n\nevent: result\ndata: {}\n\n")
	f.Add("data: \n\n")
	f.Add("event: x\n")
	f.Fuzz(func(t *testing.T, text string) {
		in := bufio.NewReaderSize(iotest.OneByteReader(strings.NewReader(text)), 64)
		for {
			if _, err := nextEvent(in); err != nil {
				return
			}
			if _, err := io.ReadAll(&lineReader{in: in}); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal(err)
			}
			if err := skipLine(in); err != nil {
				return
			}
		}
	})
}
