// Command aivory-sandbox serves locked-down Python runners over HTTP, and calls
// such a service.
//
// Its configuration is the environment; docs/configuration.md lists every
// variable. This package only wires the others together.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/alecthomas/kong"
	_ "golang.org/x/crypto/x509roots/fallback" // where the machine, or the image, has no certificates of its own

	"github.com/hjxwz123/aivory-sandbox/client"
)

// commandLine is what the program can be asked for.
type commandLine struct {
	Serve       serveCommand    `cmd:"" help:"Serve until SIGTERM or SIGINT; a second one ends it at once."`
	Doctor      doctorCommand   `cmd:"" help:"Look whether this machine can serve, and say what to do where it cannot."`
	Image       imageCommands   `cmd:"" help:"Runner images for SANDBOX_DRIVER=oci, in SANDBOX_IMAGE_DIR."`
	Healthcheck healthCommand   `cmd:"" help:"Ask the service on SANDBOX_LISTEN whether it is healthy."`
	Version     versionCommand  `cmd:"" help:"Print the version."`
	Run         runCommand      `cmd:"" help:"Run a Python program on a service, and exit as it does." group:"call"`
	Session     sessionCommands `cmd:"" help:"Sessions of a service." group:"call"`
	File        fileCommands    `cmd:"" help:"Files of a session." group:"call"`
}

const description = `Locked-down Python runners over HTTP.

The service reads its configuration from the environment: docs/configuration.md. Commands that call a service find it by SANDBOX_URL
(http://127.0.0.1:48217 where that is not set) and SANDBOX_API_KEY.`

// invocation is what commands work with.
type invocation struct {
	ctx            context.Context
	environ        []string
	stdin          io.Reader
	stdout, stderr *output
}

// exitCode ends the program with that code and without a word.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is the whole program and returns its exit code: 0 for success, 1 for a
// failure, 2 for a wrong command line; that of the program, where it runs one.
// Cancelling ctx is as a first SIGTERM.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) (code int) {
	// The parser ends the program by itself after it has printed help.
	defer func() {
		if r := recover(); r != nil {
			exit, ok := r.(exitCode)
			if !ok {
				panic(r)
			}
			code = int(exit)
		}
	}()
	if len(args) > 0 && args[0] == "help" {
		args = append(args[1:len(args):len(args)], "--help")
	}
	i := &invocation{ctx: ctx, environ: environ, stdin: os.Stdin, stdout: &output{w: stdout}, stderr: &output{w: stderr}}
	parser, err := kong.New(&commandLine{}, kong.Name("aivory-sandbox"), kong.Description(description), kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exitCode(code)) }), kong.Bind(i), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.ExplicitGroups([]kong.Group{{Key: "call", Title: "Commands that call a service:"}}))
	if err != nil {
		panic(err) // a mistake in commandLine
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "aivory-sandbox: %v\n", err)
		var wrong *kong.ParseError
		if errors.As(err, &wrong) {
			parser.Stdout = stderr
			_ = wrong.Context.PrintUsage(true)
		}
		return 2
	}
	var exit exitCode
	switch err := parsed.Run(); {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return int(exit)
	case errors.Is(err, client.ErrUnauthorized) && i.variable("SANDBOX_API_KEY") == "":
		i.say("%v: SANDBOX_API_KEY is not set", err)
		return 1
	default:
		i.say("%v", err)
		return 1
	}
}

type serveCommand struct{}

func (serveCommand) Run(i *invocation) error { return serve(i.ctx, i.environ, i.stderr.w) }

type healthCommand struct{}

func (healthCommand) Run(i *invocation) error { return healthcheck(i.ctx, i.environ) }

type versionCommand struct{}

func (versionCommand) Run(i *invocation) error {
	_, err := fmt.Fprintln(i.stdout, versionText())
	return err
}

// variable returns the value of an environment variable; of two the last counts.
func (i *invocation) variable(name string) string {
	value := ""
	for _, entry := range i.environ {
		if len(entry) > len(name) && entry[len(name)] == '=' && entry[:len(name)] == name {
			value = entry[len(name)+1:]
		}
	}
	return value
}

// client returns a client of the service that the environment names.
func (i *invocation) client() (*client.Client, error) {
	url := i.variable("SANDBOX_URL")
	if url == "" {
		url = "http://127.0.0.1:48217"
	}
	return client.New(url, i.variable("SANDBOX_API_KEY"))
}
