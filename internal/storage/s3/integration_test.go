//go:build integration

package s3_test

import (
	"slices"
	"strings"
	"testing"
	"time"

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

// What a process left that was killed goes with the next upload to that key, or when asked;
// what others are about stays.
func TestLeftoversOfAKilledProcess(t *testing.T) {
	for _, name := range s3test.Names {
		t.Run(name, func(t *testing.T) {
			server := s3test.Start(t, name)
			bucket := server.NewBucket(t)
			for _, key := range []string{"a b/+键", "a b/+键2", "other"} {
				bucket.BeginUpload(t, key)
			}
			const second = 1100 * time.Millisecond // servers tell whole ones
			time.Sleep(second)
			b := open(t, bucket.Config())
			time.Sleep(second)
			bucket.BeginUpload(t, "a b/+键")
			if _, err := b.Put(t.Context(), "a b/+键", storagetest.Content(6<<20, 1), ""); err != nil {
				t.Fatal(err)
			}
			if err := b.RemoveLeftovers(t.Context(), "other"); err != nil {
				t.Error(err)
			}
			var left []string
			for _, u := range bucket.Uploads(t) {
				left = append(left, u[:strings.LastIndexByte(u, ' ')])
			}
			slices.Sort(left)
			if want := []string{"a b/+键", "a b/+键2"}; !slices.Equal(left, want) {
				t.Errorf("left: %q, want %q", left, want)
			}
		})
	}
}
