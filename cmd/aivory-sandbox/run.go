package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	Script  string   `arg:"" help:"A Python program; - is standard input."`
	File    []string `short:"f" sep:"none" placeholder:"PATH[:NAME]" help:"Put a file beside the program, in /workspace, under its own name or another. May be given again."`
	Out     string   `short:"o" placeholder:"DIR" help:"Save the files that the program leaves in /workspace/outputs."`
	Timeout positive `placeholder:"DURATION" help:"The longest that the program may run, such as 90s; by default the service's."`
	Session string   `placeholder:"ID" help:"Use that session, and leave it; by default one is made and released."`
}

// releaseTimeout is how long the end of a run's session is waited for.
const releaseTimeout = 30 * time.Second

// Run runs the program. A first signal interrupts it, a second one leaves it, which
// ends it, and so does output that nobody reads any more.
func (c runCommand) Run(i *invocation) (err error) {
	code, err := c.read(i.stdin)
	if err != nil {
		return err
	}
	inputs, err := openInputs(c.File)
	defer closeInputs(inputs)
	if err != nil {
		return err
	}
	out, err := c.openOut()
	if err != nil {
		return fmt.Errorf("cannot save files: %w", err)
	}
	if out != nil {
		defer out.Close()
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
		if first := interrupted.first.Load(); first != 0 {
			err = exitCode(128 + first) // what a shell says of a program that it ended
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
				// Said here: the program's exit code would be in the way of an error.
				i.say("cannot release the session: %v", e)
				if err == nil {
					err = exitCode(1)
				}
			}
		}()
	}
	for _, in := range inputs {
		if err := session.WriteFile(ctx, in.name, in.file); err != nil {
			return fmt.Errorf("cannot put %s into the session: %w", in.file.Name(), err)
		}
	}
	interrupted.session.Store(session)
	result, err := session.Exec(ctx, client.Run{Code: string(code), Timeout: time.Duration(c.Timeout), Stdout: i.stdout, Stderr: i.stderr})
	interrupted.session.Store(nil)
	if err != nil {
		return fmt.Errorf("cannot run the program: %w", err)
	}
	if out == nil && len(result.Files) > 0 {
		i.say("%d file(s) are not saved: --out DIR saves them", len(result.Files))
	}
	if out != nil {
		if err := save(out, result.Files); err != nil {
			return err
		}
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

// input is a file that goes into the workspace.
type input struct {
	file *os.File
	name string // there
}

// openInputs opens files, PATH or PATH:NAME each. They stay open: one of them may be
// a pipe. The caller closes what is returned, also with an error.
func openInputs(files []string) (inputs []input, err error) {
	for _, file := range files {
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
			return inputs, fmt.Errorf("cannot read a file: %w", err)
		}
		inputs = append(inputs, input{f, name})
		info, err := f.Stat()
		if err == nil && info.IsDir() {
			err = &fs.PathError{Op: "read", Path: path, Err: syscall.EISDIR}
		}
		if err != nil {
			return inputs, fmt.Errorf("cannot read a file: %w", err)
		}
	}
	return inputs, nil
}

func closeInputs(inputs []input) {
	for _, in := range inputs {
		in.file.Close()
	}
}

// openOut makes the directory for what the program leaves, and looks whether it can
// be written: what cannot be saved is lost with the session. It is nil where none is
// wanted.
func (c runCommand) openOut() (*os.Root, error) {
	if c.Out == "" {
		return nil, nil
	}
	if err := os.MkdirAll(c.Out, 0o777); err != nil {
		return nil, err
	}
	// Made rather than asked about: root may write anywhere, but for what is
	// read-only.
	trial, err := os.CreateTemp(c.Out, ".aivory-sandbox-")
	if err != nil {
		return nil, err
	}
	if err := errors.Join(trial.Close(), os.Remove(trial.Name())); err != nil {
		return nil, err
	}
	return os.OpenRoot(c.Out)
}

// save writes what a run left. Names come from the program: none leads out of the
// directory.
func save(dir *os.Root, files []client.File) error {
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
	first   atomic.Int32                   // the signal that came first, 0 for none
	session atomic.Pointer[client.Session] // with a run in hand
	signals chan os.Signal
	pipe    chan os.Signal // takes SIGPIPE, and is not read
	over    chan struct{}
	ended   chan struct{}
}

var errInterrupted = errors.New("interrupted")

// interrupts begins to listen. The first signal interrupts the run in hand; where
// there is none, and at the second, it calls leave. SIGPIPE does nothing: it is the
// error of a write then, after which the session can be released.
func interrupts(leave context.CancelCauseFunc) *interruptions {
	n := &interruptions{
		signals: make(chan os.Signal, 2), pipe: make(chan os.Signal, 1), over: make(chan struct{}), ended: make(chan struct{}),
	}
	signal.Notify(n.signals, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup wants it
		signal.Notify(n.signals, syscall.SIGHUP)
	}
	signal.Notify(n.pipe, syscall.SIGPIPE)
	go func() {
		defer close(n.ended)
		// A second signal does not wait for the service's word about the first.
		var cancels sync.WaitGroup
		defer cancels.Wait()
		ctx, end := context.WithCancel(context.Background())
		defer end()
		for {
			var sig os.Signal
			select {
			case <-n.over:
				return
			case sig = <-n.signals:
			}
			session := n.session.Load()
			if !n.first.CompareAndSwap(0, int32(sig.(syscall.Signal))) || session == nil {
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
	signal.Stop(n.pipe)
	close(n.over)
	<-n.ended
}
