package storage_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hjxwz123/aivory-sandbox/internal/observe"
	"github.com/hjxwz123/aivory-sandbox/internal/storage"
	"github.com/hjxwz123/aivory-sandbox/internal/storage/local"
)

// told notes the storage operations that it is told of.
type told struct{ work []observe.Work }

func (o *told) Begin(ctx context.Context, _ string) (context.Context, func(observe.Work)) {
	return ctx, func(w observe.Work) { o.work = append(o.work, w) }
}

// take returns what was told as "operation outcome".
func (o *told) take() string {
	var out []string
	for _, w := range o.work {
		text := w.Attr("provider").String() + " " + w.Attr("operation").String()
		if w.Attr("missing").Any() == true {
			text += " missing"
		}
		if w.Err != nil {
			text += " failed"
		}
		out = append(out, text)
	}
	o.work = nil
	return strings.Join(out, ", ")
}

func TestObserved(t *testing.T) {
	store, err := local.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	o := &told{}
	ctx := observe.With(t.Context(), o)
	b, ok, err := storage.Observed("local", store.Driver())(ctx, storage.Config{Provider: "local"})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if _, err := b.Put(ctx, "k", strings.NewReader("abc"), ""); err != nil {
		t.Fatal(err)
	}
	body, _, err := b.Get(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	if got := o.take(); got != "local put" {
		t.Errorf("while the body is read: %s", got)
	}
	if text, err := io.ReadAll(body); err != nil || string(text) != "abc" || body.Close() != nil {
		t.Errorf("%q, %v", text, err)
	}
	if _, _, err := b.Get(ctx, "none"); !errors.Is(err, storage.ErrNotExist) {
		t.Error(err)
	}
	if err := b.List(ctx, "", func(storage.Object) error { return io.ErrClosedPipe }); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
	if _, err := b.PresignGet(ctx, "k", time.Minute); !errors.Is(err, storage.ErrNoPresign) {
		t.Error(err)
	}
	if err := errors.Join(b.RemoveLeftovers(ctx, "k"), b.Delete(ctx, "k")); err != nil {
		t.Error(err)
	}
	if got, want := o.take(), "local get, local get missing, local list failed, local presign, local remove leftovers, local delete"; got != want {
		t.Errorf("told of %s", got)
	}
}
