//go:build integration

package s3_test

import (
	"strings"
	"testing"

	"github.com/hjxwz123/aivory-sandbox/internal/storage/s3/s3test"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/storagetest"
)

// Both servers keep objects as files. So a name of 300 bytes cannot be, nor an
// object whose key is a directory of others.
var tooOdd = []string{strings.Repeat("n", 300), "a/", "list"}

func TestConformance(t *testing.T) {
	for _, name := range s3test.Names {
		t.Run(name, func(t *testing.T) {
			server := s3test.Start(t, name)
			storagetest.Run(t, func(t *testing.T) storagetest.Store {
				b := server.NewBucket(t)
				return storagetest.Store{
					Bucket:   open(t, b.Config()),
					Presigns: true,
					Uploads:  func(t *testing.T) []string { return b.Uploads(t) },
					Odd:      tooOdd,
				}
			})
		})
	}
}

// The suite finds nothing half-written only if it would find it.
func TestUnfinishedUploadIsSeen(t *testing.T) {
	for _, name := range s3test.Names {
		t.Run(name, func(t *testing.T) {
			b := s3test.Start(t, name).NewBucket(t)
			b.BeginUpload(t, "some/where/unfinished")
			if got := b.Uploads(t); len(got) != 1 {
				t.Errorf("unfinished uploads: %q", got)
			}
		})
	}
}
