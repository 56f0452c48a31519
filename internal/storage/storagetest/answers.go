package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/fault"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
)

// badAnswers cost memory or time, or mean nothing.
var badAnswers = map[string]string{
	"entities": `<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">` +
		`<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;">]>` +
		`<Error><Code>&d;&d;&d;&d;</Code><Message>&d;</Message></Error>`,
	"depth":     strings.Repeat("<a>", 100_000),
	"breadth":   "<ListBucketResult>" + strings.Repeat("<Contents/>", 50_000) + "</ListBucketResult>",
	"no XML":    "<html>It works!",
	"nothing":   "",
	"half":      `<?xml version="1.0"?><ListBucketResult><Contents><Key>f/`,
	"bytes":     "\xff\xfe\x00\x01",
	"too long":  strings.Repeat(" ", 9<<20),
	"attribute": `<Error a="` + strings.Repeat("x", 256<<10) + `"/>`,
}

// testBadAnswers gives them for errors and for successes.
func testBadAnswers(t *testing.T, start Start) {
	for name, answer := range badAnswers {
		for _, status := range []int{200, 403} {
			t.Run(fmt.Sprintf("%s %d", name, status), func(t *testing.T) {
				f := start(t, patient, func(http.Handler) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						w.Header().Set("Content-Type", "application/xml")
						w.WriteHeader(status)
						_, _ = io.WriteString(w, answer)
					})
				})
				began := time.Now()
				peak := PeakHeap(t, func() {
					for _, op := range operations() {
						if len(answer) > 1<<20 && op.name != "List" {
							continue // three times as many megabytes, and the same code
						}
						err := op.do(t.Context(), f.Bucket)
						// A plain Put, Delete and Get do not look at the text of a success.
						if looks := status != 200 || op.name == "Put in parts"; looks && err == nil {
							t.Errorf("%s succeeds", op.name)
						}
						if err != nil && len(err.Error()) > 3000 {
							t.Errorf("%s fails with an error of %d bytes", op.name, len(err.Error()))
						}
					}
				})
				if peak > 160<<20 {
					t.Errorf("took %d MiB of memory", peak>>20)
				}
				if took := time.Since(began); took > 60*time.Second {
					t.Errorf("took %v", took)
				}
			})
		}
	}
}

// testListings serves listings that do not end, or give what was not asked for.
func testListings(t *testing.T, start Start) {
	listing := func(t *testing.T, page func(n int) (string, []string)) storage.Bucket {
		var c counter
		var f Faulty
		f = start(t, patient, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				c.next(r)
				next, keys := page(c.total())
				w.Header().Set("Content-Type", "application/xml")
				_, _ = io.WriteString(w, f.Page(next, keys...))
			})
		})
		return f.Bucket
	}
	none := func(storage.Object) error { return nil }

	b := listing(t, func(int) (string, []string) { return "same", []string{"f/a"} })
	if err := b.List(t.Context(), "f/", none); err == nil || !strings.Contains(err.Error(), "does not end") {
		t.Errorf("a listing that goes in circles: %v", err)
	}

	b = listing(t, func(n int) (string, []string) { return strconv.Itoa(n), nil })
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	if err := b.List(ctx, "f/", none); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
		t.Errorf("a listing that never ends: %v after %v", err, time.Since(began))
	}

	b = listing(t, func(n int) (string, []string) {
		if n > 2 {
			return "", []string{"f/last"}
		}
		return strconv.Itoa(n), []string{"f/" + strconv.Itoa(n), "other", "g/x", "", "f"}
	})
	var got []string
	err := b.List(t.Context(), "f/", func(o storage.Object) error {
		if !o.ModTime.IsZero() {
			t.Errorf("%q has the time %v, which nobody told", o.Key, o.ModTime)
		}
		got = append(got, o.Key)
		return nil
	})
	if want := []string{"f/1", "f/2", "f/last"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("a listing of what was not asked for gives %q, %v, want %q", got, err, want)
	}
}

// testBrokenObject serves objects that break off.
func testBrokenObject(t *testing.T, start Start) {
	for name, serve := range map[string]http.HandlerFunc{
		"short": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
		},
		"chunked": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
		"stalled": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			<-r.Context().Done() // until the client gives up
		},
	} {
		f := start(t, hasty, func(http.Handler) http.Handler { return serve })
		body, _, err := f.Bucket.Get(t.Context(), "k")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		data, err := io.ReadAll(body)
		if err == nil || string(data) != "half" {
			t.Errorf("%s object: read %q, %v, want an error", name, data, err)
		}
		if err := body.Close(); err != nil {
			t.Errorf("%s: closing: %v", name, err)
		}
	}
}

// testShowsNoSecret lets the server say all that it was sent, and looks for it.
func testShowsNoSecret(t *testing.T, start Start) {
	var sent []string
	hex := regexp.MustCompile(`[0-9a-f]{64}`)
	for _, status := range []int{400, 403, 404, 500} {
		f := start(t, patient, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				auth := r.Header.Get("Authorization")
				sent = append(sent, hex.FindAllString(auth, -1)...)
				sendError(w, status, "Echo", "you sent "+auth+" and I know "+FaultSecret+" for "+r.URL.String())
			})
		})
		said := output(t, func(log *slog.Logger) {
			service := storage.NewService(storage.NewOpener(map[string]storage.Driver{
				"p": func(context.Context, storage.Config) (storage.Bucket, bool, error) { return f.Bucket, true, nil },
			}), time.Hour, time.Hour)
			cfg := storage.Config{Provider: "p", S3SecretKey: FaultSecret, OSSAccessKeySecret: FaultSecret}
			var errs []error
			for _, op := range operations() {
				if op.name == "Put in parts" && status == 500 {
					continue // the same requests again
				}
				errs = append(errs, op.do(t.Context(), f.Bucket))
			}
			_, err := service.Put(t.Context(), cfg, "k", "", strings.NewReader("x"), nil)
			errs = append(errs, err)
			_, err = service.Delete(t.Context(), cfg, "k")
			errs = append(errs, err)
			_, err = service.GC(t.Context(), cfg, 1)
			errs = append(errs, err)
			for _, err := range errs {
				if err == nil {
					t.Errorf("an operation succeeds with %d", status)
					continue
				}
				log.Error("cannot", "err", err, "storage", cfg)
				fmt.Fprintf(os.Stdout, "%v %+v %q\n", err, err, err)
				for e := err; e != nil; e = errors.Unwrap(e) {
					fmt.Fprintln(os.Stdout, e)
				}
				var f *fault.Error
				if errors.As(err, &f) && strings.Contains(f.Detail, "you sent") {
					t.Errorf("the client reads %q", f.Detail)
				}
			}
		})
		if !strings.Contains(said, "you sent") {
			t.Errorf("what the store says is not in the log:\n%s", said)
		}
		for _, hidden := range append(sent, FaultSecret, strings.ReplaceAll(strings.ReplaceAll(FaultSecret, "/", "%2F"), "+", "%2B")) {
			if strings.Contains(said, hidden) {
				t.Fatalf("%q is in what was said:\n%s", hidden, said)
			}
		}
	}
	if len(sent) == 0 {
		t.Error("no request was signed")
	}
}

// output returns what fn writes to a log, to the standard streams and to the
// default loggers.
func output(t *testing.T, fn func(*slog.Logger)) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // read back below
	stdout, stderr, standard := os.Stdout, os.Stderr, slog.Default()
	os.Stdout, os.Stderr = f, f
	log.SetOutput(f)
	var text bytes.Buffer
	slog.SetDefault(slog.New(slog.NewTextHandler(f, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer func() {
		os.Stdout, os.Stderr = stdout, stderr
		slog.SetDefault(standard)
		log.SetOutput(stderr)
	}()
	fn(slog.New(slog.NewJSONHandler(&text, nil)))
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return text.String() + string(data)
}
