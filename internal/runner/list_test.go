package runner

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestList(t *testing.T) {
	r, _ := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"list": func(p *peer, req request, _ []byte) {
		if req.Limit != 3 || req.Depth != 2 {
			t.Errorf("asked %+v", req)
		}
		p.send(frameBeat, "")
		p.send(frameResult, "{}")
		p.send(frameData, "[\"a\\u0000\\ufffd\",1]\n[\"b")
		p.send(frameBeat, "")
		p.send(frameData, "\",2]\n[\"c\",9007199254740993]")
		p.send(frameEnd, "")
	}}))
	files, err := r.List(t.Context(), 3, 2)
	want := []FileInfo{{"a\x00\ufffd", 1}, {"b", 2}, {"c", 9007199254740993}}
	if err != nil || fmt.Sprint(files) != fmt.Sprint(want) {
		t.Errorf("got %v, %v", files, err)
	}
}

func TestEmptyList(t *testing.T) {
	r, _ := fakeRunner(t, serve(map[string]func(*peer, request, []byte){"list": func(p *peer, _ request, _ []byte) {
		p.send(frameResult, "{}")
		p.send(frameEnd, "")
	}}))
	if files, err := r.List(t.Context(), 0, 0); err != nil || files == nil || len(files) != 0 {
		t.Errorf("got %v, %v", files, err)
	}
}

func TestHostileList(t *testing.T) {
	for name, answer := range map[string]func(*peer){
		"more than asked": func(p *peer) { p.send(frameData, "[\"a\",1]\n[\"b\",1]\n[\"c\",1]\n") },
		"no JSON":         func(p *peer) { p.send(frameData, "a\n") },
		"no row":          func(p *peer) { p.send(frameData, "{}\n") },
		"no size":         func(p *peer) { p.send(frameData, "[\"a\"]\n") },
		"wrong types":     func(p *peer) { p.send(frameData, "[1,\"a\"]\n") },
		"a long line":     func(p *peer) { p.send(frameData, strings.Repeat("x", maxFrame)) },
		"another frame":   func(p *peer) { p.send(frameFile, "{}") },
		"beats": func(p *peer) {
			for {
				p.send(frameBeat, "")
				time.Sleep(time.Second)
			}
		},
		"silence":    func(*peer) {},
		"the end":    func(p *peer) { panic(errHungUp) },
		"half a row": func(p *peer) { p.header(frameData, 5); p.raw([]byte("[")); panic(errHungUp) },
		"no end to it": func(p *peer) {
			for {
				p.send(frameData, strings.Repeat("\n", maxFrame))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hostile := func(p *peer) {
					p.greet()
					p.request()
					p.send(frameResult, `{}`)
					answer(p)
					p.read()
				}
				r, _ := fakeRunner(t, hostile, hostile, tidy)
				start := time.Now()
				files, err := r.List(t.Context(), 2, 2)
				if err == nil || !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrLost) {
					t.Errorf("listed %v, %v", files, err)
				}
				if took := time.Since(start); took > 2*patience {
					t.Errorf("took %v", took)
				}
				if r.conn != nil {
					t.Error("the agent was kept")
				}
			})
		})
	}
}
