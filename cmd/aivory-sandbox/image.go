package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"

	"github.com/hjxwz123/aivory-sandbox/internal/config"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci"
	"github.com/hjxwz123/aivory-sandbox/internal/runner/oci/image"
)

const imageUsage = `usage: aivory-sandbox image COMMAND

  import SOURCE [NAME]   unpack an image for the oci driver; SOURCE is a tar of a root
                         file system, an archive that docker save wrote, an OCI layout
                         as a directory or a tar, or a reference in a registry; NAME is
                         SANDBOX_IMAGE, or the reference, where it is not given
  list                   list what was imported
  remove NAME|DIGEST     remove an image that no runner uses

Images are kept in SANDBOX_IMAGE_DIR.
`

// errUsage means that the command line is wrong.
var errUsage = errors.New("wrong command line")

// handleImages is the command image.
func handleImages(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	dir, name, err := config.Images(environ)
	if err != nil {
		return err
	}
	ctx, release := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer release()
	store := func() (*image.Store, error) { return image.Open(dir, oci.Bundles()) }
	switch {
	case len(args) == 2 && args[0] == "import":
		return importImage(ctx, store, args[1], "", name, stdout, stderr)
	case len(args) == 3 && args[0] == "import":
		return importImage(ctx, store, args[1], args[2], name, stdout, stderr)
	case len(args) == 1 && args[0] == "list":
		return listImages(store, stdout)
	case len(args) == 2 && args[0] == "remove":
		s, err := store()
		if err != nil {
			return err
		}
		return s.Remove(args[1])
	}
	return errUsage
}

// importImage imports from a file or, where source is none, from a registry. The
// digest goes to stdout.
func importImage(ctx context.Context, store func() (*image.Store, error), source, as, usual string, stdout, stderr io.Writer) error {
	s, err := store()
	if err != nil {
		return err
	}
	told := time.Now()
	progress := func(n int64) {
		if time.Since(told) > 2*time.Second {
			told = time.Now()
			fmt.Fprintf(stderr, "unpacked %s\n", units.BytesSize(float64(n)))
		}
	}
	var img *image.Image
	if _, statErr := os.Stat(source); statErr == nil {
		if as == "" {
			as = usual
		}
		img, err = s.Import(ctx, source, as, progress)
	} else if strings.HasPrefix(source, "/") || strings.HasPrefix(source, ".") {
		return fmt.Errorf("cannot import the image: %w", statErr)
	} else {
		img, err = s.Pull(ctx, source, as, progress)
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, img.Digest)
	return err
}

func listImages(store func() (*image.Store, error), stdout io.Writer) error {
	s, err := store()
	if err != nil {
		return err
	}
	list, err := s.List()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tDIGEST\tSIZE\tIMPORTED")
	for _, e := range list {
		names := e.References
		if len(names) == 0 {
			names = []string{"-"}
		}
		for _, name := range names {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", name, e.Digest, units.BytesSize(float64(e.Size)), e.Imported.Format(time.DateTime))
		}
	}
	return w.Flush()
}
