package storagetest

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// testList lists more than one page: stores give a thousand keys at a time.
func testList(t *testing.T, s Store) {
	const n = 1100
	want := map[string]int64{}
	for i := range n {
		want[fmt.Sprintf("list/%04d.tgz", i)] = int64(i % 7)
	}
	want["list/sub/deeper/x"] = 3
	inParallel(t, 8, slices.Collect(maps.Keys(want)), func(key string) error {
		_, err := s.Bucket.Put(t.Context(), key, Content(want[key], 1), "application/gzip")
		return err
	})
	// Neighbours that a prefix does not cover.
	for _, key := range []string{"list", "listing/x", "lis", "other/list/x"} {
		if slices.Contains(s.Odd, key) {
			continue
		}
		put(t, s.Bucket, key, "neighbour")
	}
	found := keys(t, s.Bucket, "list/")
	for key, o := range found {
		if size, ok := want[key]; !ok {
			t.Errorf("List gives %q, which has not the prefix", key)
		} else if o.Size != size {
			t.Errorf("List gives %q with %d bytes, want %d", key, o.Size, size)
		}
		if age := time.Since(o.ModTime); age < -time.Minute || age > time.Hour {
			t.Errorf("List says that %q was modified at %v", key, o.ModTime)
		}
	}
	if len(found) != len(want) {
		t.Errorf("List gives %d objects, want %d", len(found), len(want))
	}
	// A prefix may end within a name, be a whole key, or match nothing.
	for prefix, count := range map[string]int{"list/00": 100, "list/0042.tgz": 1, "list/sub": 1, "list/nothing": 0, "nothing/": 0, "nothing": 0} {
		if got := keys(t, s.Bucket, prefix); len(got) != count {
			t.Errorf("List(%q) gives %d objects, want %d", prefix, len(got), count)
		}
	}
	deleteWhileListing(t, s, n+1)
}

// deleteWhileListing does what collecting old objects does.
func deleteWhileListing(t *testing.T, s Store, want int) {
	deleted := 0
	err := s.Bucket.List(t.Context(), "list/", func(o storage.Object) error {
		deleted++
		return s.Bucket.Delete(t.Context(), o.Key)
	})
	if err != nil || deleted != want {
		t.Errorf("List that deletes what it lists gave %d objects, %v, want %d", deleted, err, want)
	}
	if left := keys(t, s.Bucket, "list/"); len(left) > 0 {
		t.Errorf("%d objects are left", len(left))
	}
}

func testOddKeys(t *testing.T, s Store) {
	var all []string
	for _, key := range []string{
		"文件/数据 表.pdf", "a b  c", "plus+plus", "100%", "%41", "a%2Fb", `quo"te'd`, "hash#tag", "what?x=1&y=2",
		"semi;colon", "a=b", "tilde~", "~", "(paren)[bracket]{brace}", "back\\slash", "star*", "pipe|", "<xml>&amp;",
		"comma,", "at@", "dollar$", "excl!", "caret^`", "😀.csv", "trailing ", " leading", "dot.", ".dot", "-dash",
		"tab\there", "new\nline", "e\u0301", "\u00e9",
	} {
		if !slices.Contains(s.Odd, key) {
			all = append(all, "odd/"+key, "odd/dir "+key+"/x")
		}
	}
	for _, key := range all {
		put(t, s.Bucket, key, "content of "+key)
	}
	for _, key := range all {
		if got := get(t, s.Bucket, key); got != "content of "+key {
			t.Errorf("%q holds %q", key, got)
		}
		if s.Presigns {
			wantFetched(t, s, key, "content of "+key)
		}
	}
	listed := slices.Sorted(maps.Keys(keys(t, s.Bucket, "odd/")))
	slices.Sort(all)
	if !slices.Equal(listed, all) {
		for _, key := range all {
			if !slices.Contains(listed, key) {
				t.Errorf("List lacks %q", key)
			}
		}
		for _, key := range listed {
			if !slices.Contains(all, key) {
				t.Errorf("List gives %q, which was not put", key)
			}
		}
	}
	for _, key := range all {
		if err := s.Bucket.Delete(t.Context(), key); err != nil {
			t.Errorf("Delete(%q): %v", key, err)
		}
		wantMissing(t, s.Bucket, key)
	}
}

// inParallel calls fn for each key, n at a time, and reports errors.
func inParallel(t *testing.T, n int, keys []string, fn func(key string) error) {
	t.Helper()
	todo := make(chan string)
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			for key := range todo {
				if err := fn(key); err != nil {
					t.Errorf("%q: %v", key, err)
				}
			}
		})
	}
	for _, key := range keys {
		todo <- key
	}
	close(todo)
	workers.Wait()
}
