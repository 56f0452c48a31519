// Command aivory-sandbox serves locked-down Python runners over HTTP.
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
)

const usage = `usage: aivory-sandbox COMMAND

  serve         serve until SIGTERM or SIGINT; a second one ends it at once
  image         import, list and remove runner images for SANDBOX_DRIVER=oci
  healthcheck   ask the service on SANDBOX_LISTEN whether it is healthy
  version       print the version

The configuration is read from the environment: docs/configuration.md.
`

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is the whole program and returns its exit code: 0 for success, 1 for a
// failure, 2 for a wrong command line. Cancelling ctx is as a first SIGTERM.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "image" {
		return exitCode(handleImages(ctx, args[1:], environ, stdout, stderr), imageUsage, stderr)
	}
	if len(args) != 1 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	var err error
	switch args[0] {
	case "serve":
		err = serve(ctx, environ, stderr)
	case "healthcheck":
		err = healthcheck(ctx, environ)
	case "version":
		_, err = fmt.Fprintln(stdout, versionText())
	case "help", "-h", "--help":
		_, err = fmt.Fprint(stdout, usage)
	default:
		fmt.Fprintf(stderr, "aivory-sandbox: unknown command %q\n%s", args[0], usage)
		return 2
	}
	return exitCode(err, usage, stderr)
}

// exitCode prints an error, and the usage where the command line was wrong.
func exitCode(err error, usage string, stderr io.Writer) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprint(stderr, usage)
		return 2
	}
	fmt.Fprintf(stderr, "aivory-sandbox: %v\n", err)
	return 1
}
