package main

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// afterTests ends what tests share, before leaks are looked for.
var afterTests = func() {}

// judge tells what is wrong with all tests together.
var judge = func() error { return nil }

type testMain struct{ m *testing.M }

func (m testMain) Run() int {
	code := m.m.Run()
	afterTests()
	if err := judge(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// actAsService makes the test binary the service itself, for tests that want
// it in a process of its own.
const actAsService = "AIVORY_TEST_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(actAsService) != "" {
		main()
	}
	goleak.VerifyTestMain(testMain{m})
}
