//go:build integration

package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// matcher tells what is wrong with a text, or nothing.
type matcher func(got string) string

func is(want string) matcher {
	return func(got string) string {
		if got == want {
			return ""
		}
		return fmt.Sprintf("is not %.300q", want)
	}
}

func has(want string) matcher {
	return func(got string) string {
		if strings.Contains(got, want) {
			return ""
		}
		return fmt.Sprintf("lacks %q", want)
	}
}

func like(pattern string) matcher {
	re := regexp.MustCompile(pattern)
	return func(got string) string {
		if re.MatchString(got) {
			return ""
		}
		return fmt.Sprintf("is not like %s", pattern)
	}
}

func whatever(string) string { return "" }

// anyExit is the exit code of a program that may end in more than one way.
const anyExit = -1

// program is a row of a table of programs: what is run and what comes of it.
type program struct {
	name, code string
	timeout    time.Duration // 30 s where zero
	within     time.Duration // the answer's latest arrival, where not zero
	exit       int
	out, err   matcher // nothing at all where nil
	check      func(t *testing.T, s testSession, r result)
	notGVisor  string // why gVisor makes it impossible, where it does
}

// try runs one program and checks its answer and the session afterwards.
func (s testSession) try(t *testing.T, p program) {
	t.Helper()
	r := s.run(t, p.code, p.timeout)
	if p.out == nil {
		p.out = is("")
	}
	if p.err == nil {
		p.err = is("")
	}
	if wrong := p.out(r.Stdout); wrong != "" {
		t.Errorf("stdout %s\n%v", wrong, r)
	}
	if wrong := p.err(r.Stderr); wrong != "" {
		t.Errorf("stderr %s\n%v", wrong, r)
	}
	if r.Exit != p.exit && p.exit != anyExit {
		t.Errorf("the exit code is not %d\n%v", p.exit, r)
	}
	if p.within > 0 && r.took > p.within {
		t.Errorf("it took longer than %v\n%v", p.within, r)
	}
	if p.check != nil {
		p.check(t, s, r)
	}
	s.alive(t)
}

// tryAll runs a table of programs, one after the other, on one session.
func tryAll(t *testing.T, programs []program) {
	s := sharedService(t).session(t)
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			if p.notGVisor != "" {
				exceptOnGVisor(t, p.notGVisor)
			}
			s.try(t, p)
		})
	}
}
