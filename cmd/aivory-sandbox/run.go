package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hjxwz123/aivory-sandbox/client"
)

type runCommand struct {
	Script  string        `arg:"" help:"A Python program; - is standard input."`
	File    []string      `short:"f" sep:"none" placeholder:"PATH[:NAME]" help:"Put a file beside the program, in /workspace, under its own name or another. May be given again."`
	Out     string        `short:"o" placeholder:"DIR" help:"Save the files that the program leaves in /workspace/outputs."`
	Timeout time.Duration `placeholder:"DURATION" help:"The longest that the program may run, such as 90s; by default the service's."`
	Session string        `placeholder:"ID" help:"Use that session, and leave it; by default one is made and released."`
}

// exitInterrupted is what a shell says of a program that SIGINT ended.
const exitInterrupted = exitCode(130)

// releaseTimeout is how long the end of a run's session is waited for.
const releaseTimeout = 30 * time.Second

// Run runs the program. A first SIGINT or SIGTERM interrupts it, a second one
// leaves it, which ends it.
func (c runCommand) Run(i *invocation) (err error) {
	code, err := c.read(i.stdin)
	if err != nil {
		return err
	}
	service, err := i.client()
	if err != nil {
		return err
	}
	ctx, leave := context.WithCancelCause(i.ctx)
	defer leave(nil)
	interrupted := interrupts(leave)
	defer interrupted.end()
	defer func() {
		if interrupted.came.Load() {
			err = exitInterrupted
		}
	}()

	session := service.Session(c.Session)
	if c.Session == "" {
		if session, err = service.CreateSession(ctx, client.CreateOptions{}); err != nil {
			return fmt.Errorf("cannot make a session: %w", err)
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
			defer cancel()
			if e := session.Delete(ctx, client.DeleteOptions{}); e != nil {
				err = errors.Join(err, fmt.Errorf("cannot release the session: %w", e))
			}
		}()
	}
	for _, file := range c.File {
		if err := putFile(ctx, session, file); err != nil {
			return err
		}
	}
	interrupted.session.Store(session)
	result, err := session.Exec(ctx, client.Run{Code: string(code), Timeout: c.Timeout, Stdout: i.stdout, Stderr: i.stderr})
	interrupted.session.Store(nil)
	if err != nil {
		return fmt.Errorf("cannot run the program: %w", err)
	}
	if err := c.save(result.Files, i.stderr); err != nil {
		return err
	}
	if result.ExitCode != 0 {
		return exitCode(result.ExitCode)
	}
	return nil
}

func (c runCommand) read(stdin io.Reader) ([]byte, error) {
	if c.Script == "-" {
		code, err := io.ReadAll(stdin)
		if err != nil {
			return nil, fmt.Errorf("cannot read the program: %w", err)
		}
		return code, nil
	}
	code, err := os.ReadFile(c.Script)
	if err != nil {
		return nil, fmt.Errorf("cannot read the program: %w", err)
	}
	return code, nil
}

// putFile puts a file, PATH or PATH:NAME, into the workspace.
func putFile(ctx context.Context, session *client.Session, file string) error {
	path, name, named := file, "", false
	if _, err := os.Stat(file); err != nil { // else the colon is its name's own
		if i := strings.LastIndexByte(file, ':'); i > 0 {
			path, name, named = file[:i], file[i+1:], true
		}
	}
	if !named {
		name = filepath.Base(path)
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot read a file: %w", err)
	}
	defer f.Close()
	if err := session.WriteFile(ctx, name, f); err != nil {
		return fmt.Errorf("cannot put %s into the session: %w", path, err)
	}
	return nil
}

// save writes what a run left, or says that it is not saved.
func (c runCommand) save(files []client.File, stderr io.Writer) error {
	if len(files) == 0 {
		return nil
	}
	if c.Out == "" {
		fmt.Fprintf(stderr, "aivory-sandbox: %d file(s) are not saved: --out DIR saves them\n", len(files))
		return nil
	}
	if err := os.MkdirAll(c.Out, 0o777); err != nil {
		return fmt.Errorf("cannot save files: %w", err)
	}
	// Names come from the program: none leads out of the directory.
	dir, err := os.OpenRoot(c.Out)
	if err != nil {
		return fmt.Errorf("cannot save files: %w", err)
	}
	defer dir.Close()
	var problems []error // one does not keep the others from being saved
	for _, f := range files {
		if err := saveFile(dir, f); err != nil {
			problems = append(problems, fmt.Errorf("cannot save a file: %w", err))
		}
	}
	return errors.Join(problems...)
}

func saveFile(dir *os.Root, f client.File) error {
	name := f.Path
	if name == "" {
		name = f.Name
	}
	name = filepath.FromSlash(name)
	if err := dir.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		return err
	}
	return dir.WriteFile(name, f.Data, 0o666)
}

// interruptions turns signals into the end of a run.
type interruptions struct {
	came    atomic.Bool
	session atomic.Pointer[client.Session] // with a run in hand
	signals chan os.Signal
	over    chan struct{}
	ended   chan struct{}
}

var errInterrupted = errors.New("interrupted")

// interrupts begins to listen. The first signal interrupts the run in hand; where
// there is none, and at the second, it calls leave.
func interrupts(leave context.CancelCauseFunc) *interruptions {
	n := &interruptions{signals: make(chan os.Signal, 2), over: make(chan struct{}), ended: make(chan struct{})}
	signal.Notify(n.signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		defer close(n.ended)
		// A second signal does not wait for the service's word about the first.
		var cancels sync.WaitGroup
		defer cancels.Wait()
		ctx, end := context.WithCancel(context.Background())
		defer end()
		for {
			select {
			case <-n.over:
				return
			case <-n.signals:
			}
			session := n.session.Load()
			if n.came.Swap(true) || session == nil {
				leave(errInterrupted)
				continue
			}
			cancels.Go(func() {
				if !cancelRun(ctx, session) {
					leave(errInterrupted)
				}
			})
		}
	}()
	return n
}

// cancelRun interrupts the run that a session has in hand, and tells whether it
// did.
func cancelRun(ctx context.Context, session *client.Session) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	was, err := session.Cancel(ctx)
	return was && err == nil
}

func (n *interruptions) end() {
	signal.Stop(n.signals)
	close(n.over)
	<-n.ended
}
