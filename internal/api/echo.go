package api

import "encoding/json"

// maxEcho bounds, in bytes, what a validation error repeats of its input.
const maxEcho = 1 << 10

// echo collects the beginning of a value as compact JSON while it is scanned,
// to be shown in a validation error.
type echo struct {
	text []byte
	cut  bool
}

// raw adds JSON text.
func (e *echo) raw(p ...byte) {
	if room := maxEcho - len(e.text); !e.cut && len(p) > room {
		p, e.cut = p[:room], true
	} else if e.cut {
		return
	}
	e.text = append(e.text, p...)
}

// str adds a part of a string, without quotes.
func (e *echo) str(p []byte) {
	if e.cut {
		return
	}
	if len(p) > maxEcho {
		p = p[:maxEcho+1] // more than there is room for, so that it is seen to be cut
	}
	e.text = appendEscaped(e.text, p)
	if len(e.text) > maxEcho {
		e.text, e.cut = e.text[:maxEcho], true
	}
}

// value returns the collected value. One that was cut is shown as a string that
// holds the beginning of its text, so that the answer stays valid JSON.
func (e *echo) value() json.RawMessage {
	if e.cut {
		return cutString(e.text)
	}
	return append(json.RawMessage(nil), e.text...)
}

// cutString returns a JSON string of p, which is only the beginning of a text,
// and an ellipsis.
func cutString(p []byte) json.RawMessage {
	p = p[:completeRunes(p)]
	out := appendEscaped([]byte{'"'}, p)
	return append(out, `…"`...)
}

// echoString returns text as a JSON string, cut to maxEcho bytes.
func echoString(text []byte, cut bool) json.RawMessage {
	if len(text) > maxEcho {
		text, cut = text[:maxEcho], true
	}
	if cut {
		return cutString(text)
	}
	return append(appendEscaped([]byte{'"'}, text), '"')
}
