package main

import (
	"context"
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

type imageCommands struct {
	Import imageImport `cmd:"" help:"Unpack an image."`
	List   imageList   `cmd:"" help:"List what was imported."`
	Remove imageRemove `cmd:"" help:"Remove an image that no runner uses."`
}

type imageImport struct {
	Source string `arg:"" help:"A tar of a root file system, an archive that docker save wrote, an OCI layout as a directory or a tar, or a reference in a registry."`
	Name   string `arg:"" optional:"" help:"Its name; by default SANDBOX_IMAGE, or the reference."`
}

func (c imageImport) Run(i *invocation) error {
	dir, name, err := config.Images(i.environ)
	if err != nil {
		return err
	}
	ctx, release := signal.NotifyContext(i.ctx, syscall.SIGTERM, syscall.SIGINT)
	defer release()
	store := func() (*image.Store, error) { return image.Open(dir, oci.Bundles()) }
	return importImage(ctx, store, c.Source, c.Name, name, i.stdout, i.stderr)
}

type imageList struct{}

func (imageList) Run(i *invocation) error {
	s, err := openImages(i.environ)
	if err != nil {
		return err
	}
	return listImages(s, i.stdout)
}

type imageRemove struct {
	Image string `arg:"" help:"A name or a digest."`
}

func (c imageRemove) Run(i *invocation) error {
	s, err := openImages(i.environ)
	if err != nil {
		return err
	}
	return s.Remove(c.Image)
}

func openImages(environ []string) (*image.Store, error) {
	dir, _, err := config.Images(environ)
	if err != nil {
		return nil, err
	}
	return image.Open(dir, oci.Bundles())
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
	} else if isPath(source) {
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

// isPath tells whether a source that is not there must be a file, and no reference in
// a registry.
func isPath(source string) bool {
	if strings.HasPrefix(source, "/") || strings.HasPrefix(source, ".") {
		return true
	}
	for _, suffix := range []string{".tar", ".tgz", ".tar.gz"} {
		if strings.HasSuffix(source, suffix) {
			return true
		}
	}
	return false
}

func listImages(s *image.Store, stdout io.Writer) error {
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
