package observe

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// notes keeps what it is told of.
type notes struct {
	name  string
	begun []string
	ended []Work
}

type noteKey string

func (n *notes) Begin(ctx context.Context, name string) (context.Context, func(Work)) {
	n.begun = append(n.begun, name)
	return context.WithValue(ctx, noteKey(n.name), name), func(w Work) { n.ended = append(n.ended, w) }
}

func TestWorkIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := &notes{name: "a"}, &notes{name: "b"}
		ctx := With(t.Context(), All(a, b))
		inner, span := Start(ctx, Run, slog.String("session", "s"), slog.String("reason", "exit"))
		if inner.Value(noteKey("a")) != Run || inner.Value(noteKey("b")) != Run || ctx.Value(noteKey("a")) != nil {
			t.Error("the work's context is not that of both observers")
		}
		time.Sleep(3 * time.Second)
		span.Set(slog.String("reason", "oom"))
		failure := errors.New("x")
		span.End(failure)
		span.Set(slog.String("reason", "late"))
		span.End(nil)
		for _, n := range []*notes{a, b} {
			if len(n.begun) != 1 || len(n.ended) != 1 {
				t.Fatalf("%s was told of %d beginnings, %d ends", n.name, len(n.begun), len(n.ended))
			}
			w := n.ended[0]
			if w.Name != Run || w.Duration() != 3*time.Second || !errors.Is(w.Err, failure) ||
				w.Attr("session").String() != "s" || w.Attr("reason").String() != "oom" || w.Attr("none").Any() != nil {
				t.Errorf("%s was told %+v", n.name, w)
			}
		}
	})
}

func TestNobodyWatches(t *testing.T) {
	ctx := With(t.Context(), nil)
	inner, span := Start(ctx, Run)
	if inner != ctx {
		t.Error("a context of its own for nobody")
	}
	span.Set(slog.Int("a", 1))
	span.End(nil)
}
