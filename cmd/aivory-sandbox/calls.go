package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/google/renameio/v2"

	"github.com/hjxwz123/aivory-sandbox/client"
)

type sessionCommands struct {
	Create sessionCreate `cmd:"" help:"Make a session and print its id."`
	List   sessionList   `cmd:"" help:"List all sessions."`
	Show   sessionShow   `cmd:"" help:"Show a session, as JSON."`
	Cancel sessionCancel `cmd:"" help:"Interrupt the run that a session has in hand."`
	Delete sessionDelete `cmd:"" help:"Release a session."`
}

type sessionCreate struct {
	IdleTTL    positive `name:"idle-ttl" placeholder:"DURATION" help:"Idle time after which it is released, such as 1h."`
	ArchiveKey string   `name:"archive-key" placeholder:"KEY" help:"Name of the workspace's archive in the service's local storage; it is restored from there and kept there."`
}

func (c sessionCreate) Run(i *invocation) error {
	service, err := i.client()
	if err != nil {
		return err
	}
	options := client.CreateOptions{IdleTTL: time.Duration(c.IdleTTL), ArchiveKey: c.ArchiveKey}
	if c.ArchiveKey != "" {
		options.Storage = &client.Storage{Provider: "local"}
	}
	s, err := service.CreateSession(i.ctx, options)
	if err != nil {
		return fmt.Errorf("cannot make a session: %w", err)
	}
	if _, err := fmt.Fprintln(i.stdout, s.ID()); err != nil {
		return err
	}
	if c.ArchiveKey != "" {
		// An older service does not tell.
		if info, err := s.Info(i.ctx); err == nil && info.Provider == "" {
			i.say("the service has no local storage (SANDBOX_LOCAL_STORAGE_DIR): the session's workspace is neither restored nor kept")
		}
	}
	return nil
}

// positive is a time of more than nothing: nothing would be the service's default.
type positive time.Duration

func (p *positive) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil || d <= 0 {
		return fmt.Errorf("%q is not accepted; accepted is a time of more than nothing, such as 90s or 1h", text)
	}
	*p = positive(d)
	return nil
}

type sessionList struct{}

func (sessionList) Run(i *invocation) error {
	service, err := i.client()
	if err != nil {
		return err
	}
	sessions, err := service.Sessions(i.ctx)
	if err != nil {
		return fmt.Errorf("cannot list sessions: %w", err)
	}
	w := tabwriter.NewWriter(i.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "SESSION\tSTATE\tAGE\tIDLE LEFT\tRUNS\tPEAK MEMORY\tSTORAGE")
	for _, s := range sessions {
		provider := s.Provider
		if provider == "" {
			provider = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", s.ID, s.State, inWords(s.Age), inWords(s.IdleLeft), s.Usage.Runs, units.BytesSize(float64(s.Usage.PeakMemory)), provider)
	}
	return w.Flush()
}

// inWords is a time in whole seconds.
func inWords(seconds float64) string {
	return (time.Duration(seconds * float64(time.Second))).Round(time.Second).String()
}

type sessionShow struct {
	ID string `arg:"" help:"The session's id."`
}

func (c sessionShow) Run(i *invocation) error {
	service, err := i.client()
	if err != nil {
		return err
	}
	info, err := service.Session(c.ID).Info(i.ctx)
	if err != nil {
		return fmt.Errorf("cannot show the session: %w", err)
	}
	out := json.NewEncoder(i.stdout)
	out.SetIndent("", "  ")
	return out.Encode(info)
}

type sessionCancel struct {
	ID string `arg:"" help:"The session's id."`
}

func (c sessionCancel) Run(i *invocation) error {
	service, err := i.client()
	if err != nil {
		return err
	}
	was, err := service.Session(c.ID).Cancel(i.ctx)
	if err != nil {
		return fmt.Errorf("cannot interrupt the run: %w", err)
	}
	if !was {
		i.say("there is no run in hand")
	}
	return nil
}

type sessionDelete struct {
	ID      string `arg:"" help:"The session's id."`
	Discard bool   `help:"Keep no archive of its workspace, and delete the one there is."`
}

func (c sessionDelete) Run(i *invocation) error {
	service, err := i.client()
	if err != nil {
		return err
	}
	if err := service.Session(c.ID).Delete(i.ctx, client.DeleteOptions{Discard: c.Discard}); err != nil {
		return fmt.Errorf("cannot release the session: %w", err)
	}
	return nil
}

type fileCommands struct {
	Put  filePut  `cmd:"" help:"Write a file into a session."`
	Get  fileGet  `cmd:"" help:"Read a file of a session."`
	List fileList `cmd:"" help:"List the files of a session."`
}

type filePut struct {
	Session string `arg:"" help:"The session's id."`
	Source  string `arg:"" help:"A file here; - is standard input."`
	Path    string `arg:"" help:"Its path in /workspace."`
}

func (c filePut) Run(i *invocation) error {
	service, err := i.client()
	if err != nil {
		return err
	}
	source := i.stdin
	if c.Source != "-" {
		f, err := os.Open(c.Source)
		if err != nil {
			return fmt.Errorf("cannot read a file: %w", err)
		}
		defer f.Close()
		source = f
	}
	if err := service.Session(c.Session).WriteFile(i.ctx, c.Path, source); err != nil {
		return fmt.Errorf("cannot write the file: %w", err)
	}
	return nil
}

type fileGet struct {
	Session string `arg:"" help:"The session's id."`
	Path    string `arg:"" help:"A path in /workspace."`
	Target  string `arg:"" optional:"" default:"-" help:"A file here; - is standard output, which is where it goes by default."`
}

func (c fileGet) Run(i *invocation) error {
	service, err := i.client()
	if err != nil {
		return err
	}
	file, err := service.Session(c.Session).ReadFile(i.ctx, c.Path)
	if err != nil {
		return fmt.Errorf("cannot read the file: %w", err)
	}
	defer file.Close()
	if c.Target == "-" {
		_, err := io.Copy(i.stdout, file)
		return err
	}
	if info, err := os.Stat(c.Target); err == nil && !info.Mode().IsRegular() {
		return writeInto(c.Target, file) // a device or a pipe stays what it is
	}
	// Whole or not at all.
	target, err := renameio.NewPendingFile(c.Target, renameio.WithPermissions(0o644))
	if err != nil {
		return fmt.Errorf("cannot save the file: %w", err)
	}
	defer func() { _ = target.Cleanup() }() // does nothing once it is in its place
	if _, err := io.Copy(target, file); err != nil {
		return fmt.Errorf("cannot save the file: %w", err)
	}
	return target.CloseAtomicallyReplace()
}

func writeInto(path string, in io.Reader) error {
	out, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("cannot save the file: %w", err)
	}
	if _, err := io.Copy(out, in); err != nil {
		return fmt.Errorf("cannot save the file: %w", errors.Join(err, out.Close()))
	}
	return out.Close()
}

type fileList struct {
	Session string `arg:"" help:"The session's id."`
}

func (c fileList) Run(i *invocation) error {
	service, err := i.client()
	if err != nil {
		return err
	}
	files, err := service.Session(c.Session).ListFiles(i.ctx)
	if err != nil {
		return fmt.Errorf("cannot list files: %w", err)
	}
	w := tabwriter.NewWriter(i.stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	for _, f := range files {
		fmt.Fprintf(w, "%d\t %s\n", f.Size, f.Path)
	}
	return w.Flush()
}
