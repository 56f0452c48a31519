package runnertest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/runner"
)

// testStorm runs programs that destroy all they can reach, each of them made of
// a few such deeds in any order, and looks after the session in between.
func testStorm(t *testing.T, s *suite) {
	b := s.sandbox(t)
	b.put(t, "kept", "content")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, seed))
	deeds := []string{
		"os.kill(-1, 9)",
		"os.kill(os.getppid(), 9)",
		"os.kill(os.getppid(), 19)",
		"os.fork()",
		"os.setsid() if os.getpid() != os.getpgrp() else None",
		"[os.fork() for _ in range(5)]",
		"subprocess.Popen(['sh', '-c', 'sleep 0.1; kill -9 -1'], start_new_session=True)",
		"shutil.rmtree('/tmp', ignore_errors=True)",
		"shutil.rmtree('/home/sandbox', ignore_errors=True)",
		"os.chmod('/workspace', 0)",
		"os.chmod('/tmp', 0)",
		"os.closerange(0, 100)",
		"resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
		"os.symlink('/etc', '/workspace/outputs/x%d' % os.getpid())",
		"time.sleep(0.2)",
		"open('/dev/shm/x', 'wb').write(bytes(100 << 20))",
		"[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]",
		"bytearray(4 << 30)",
		"subprocess.Popen(['setsid', 'sh', '-c', 'while :; do kill -9 -1; done'])",
	}
	for round := range soak(200, 10) {
		code := "import os, resource, shutil, signal, subprocess, time\n"
		for range 1 + random.IntN(4) {
			code += "try: " + deeds[random.IntN(len(deeds))] + "\nexcept BaseException: pass\n"
		}
		start := time.Now()
		if o := b.run(t, code, limit(time.Second)); o.Reason == runner.ReasonLost {
			t.Errorf("round %d, %q: the agent was reached", round, code)
		}
		b.prints(t, "print(open('kept').read())", "content\n")
		b.prints(t, processes, "[]\n")
		if t.Failed() {
			t.Fatalf("round %d, %q", round, code)
		}
		if took := time.Since(start); took > 15*time.Second {
			t.Logf("round %d: %v: %q", round, took, code)
		}
	}
}
