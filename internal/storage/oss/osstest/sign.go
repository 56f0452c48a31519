package osstest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Version 4 signatures, written from the published description of the
// algorithm. Nothing here comes from the SDK that the driver signs with, so that
// a fault of the one is not repeated in the other.

const (
	algorithm = "OSS4-HMAC-SHA256"
	unsigned  = "UNSIGNED-PAYLOAD"
	timestamp = "20060102T150405Z"
	// skew is by how much a clock may differ.
	skew = 15 * time.Minute
)

// scope is what a signing key is made for.
type scope struct{ keyID, date, region, product, request string }

func parseScope(credential string) (scope, error) {
	p := strings.Split(credential, "/")
	if len(p) != 5 {
		return scope{}, fmt.Errorf("credential has %d fields", len(p))
	}
	return scope{p[0], p[1], p[2], p[3], p[4]}, nil
}

func (s scope) String() string {
	return s.date + "/" + s.region + "/" + s.product + "/" + s.request
}

// signingKey derives the key that signs within a scope.
func signingKey(secret string, s scope) []byte {
	key := []byte("aliyun_v4" + secret)
	for _, field := range []string{s.date, s.region, s.product, s.request} {
		key = mac(key, field)
	}
	return key
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// stringToSign ties a canonical request to time and scope.
func stringToSign(when string, s scope, canonical string) string {
	sum := sha256.Sum256([]byte(canonical))
	return strings.Join([]string{algorithm, when, s.String(), hex.EncodeToString(sum[:])}, "\n")
}

// param is a query parameter, decoded.
type param struct{ name, value string }

// canonicalRequest is the text of a request that its signature covers. Resource
// is /bucket/key, however the request addresses it.
func canonicalRequest(method, resource string, query []param, header http.Header, additional []string, payload string) string {
	var encoded []string
	for _, p := range query {
		e := uriEncode(p.name, true)
		if p.value != "" {
			e += "=" + uriEncode(p.value, true)
		}
		encoded = append(encoded, e)
	}
	slices.SortFunc(encoded, func(a, b string) int {
		an, _, _ := strings.Cut(a, "=")
		bn, _, _ := strings.Cut(b, "=")
		return strings.Compare(an, bn)
	})
	var lines []string
	for name, values := range header {
		lower := strings.ToLower(name)
		if lower == "content-type" || lower == "content-md5" || strings.HasPrefix(lower, "x-oss-") || slices.Contains(additional, lower) {
			trimmed := make([]string, len(values))
			for i, v := range values {
				trimmed[i] = strings.TrimSpace(v)
			}
			lines = append(lines, lower+":"+strings.Join(trimmed, ",")+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join([]string{
		method, uriEncode(resource, false), strings.Join(encoded, "&"),
		strings.Join(lines, ""), strings.Join(additional, ";"), payload,
	}, "\n")
}

// uriEncode escapes all but letters, digits and "-_.~", and "/" only if asked to.
func uriEncode(s string, slash bool) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-_.~", c) >= 0, c == '/' && !slash:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// verify reports what is wrong with the signature of a request for resource.
func (s *Server) verify(r *http.Request, resource string, query []param) error {
	now := time.Now().UTC()
	if r.Header.Get("Authorization") != "" {
		return s.verifyHeader(r, resource, query, now)
	}
	return s.verifyURL(r, resource, query, now)
}

func (s *Server) verifyHeader(r *http.Request, resource string, query []param, now time.Time) error {
	rest, ok := strings.CutPrefix(r.Header.Get("Authorization"), algorithm+" ")
	if !ok {
		return errors.New("authorization is of another algorithm")
	}
	fields := map[string]string{}
	for f := range strings.SplitSeq(rest, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(f), "=")
		fields[name] = value
	}
	var additional []string
	if list := fields["AdditionalHeaders"]; list != "" {
		additional = strings.Split(list, ";")
	}
	payload := r.Header.Get("X-Oss-Content-Sha256")
	if payload != unsigned {
		return fmt.Errorf("x-oss-content-sha256 is %q", payload)
	}
	when := r.Header.Get("X-Oss-Date")
	t, err := time.Parse(timestamp, when)
	if err != nil {
		return err
	}
	if d := now.Sub(t); d > skew || d < -skew {
		return fmt.Errorf("request is of %v", t)
	}
	canonical := canonicalRequest(r.Method, resource, query, r.Header, additional, payload)
	return s.compare(fields["Credential"], when, canonical, fields["Signature"])
}

func (s *Server) verifyURL(r *http.Request, resource string, query []param, now time.Time) error {
	values := map[string]string{}
	var signed []param
	for _, p := range query {
		values[p.name] = p.value
		if p.name != "x-oss-signature" {
			signed = append(signed, p)
		}
	}
	if values["x-oss-signature-version"] != algorithm {
		return errors.New("request is not signed")
	}
	t, err := time.Parse(timestamp, values["x-oss-date"])
	if err != nil {
		return err
	}
	seconds, err := strconv.Atoi(values["x-oss-expires"])
	if err != nil || seconds < 1 || seconds > 7*24*3600 {
		return fmt.Errorf("x-oss-expires is %q", values["x-oss-expires"])
	}
	if t.Sub(now) > skew || now.After(t.Add(time.Duration(seconds)*time.Second)) {
		return errors.New("URL has expired")
	}
	var additional []string
	if list := values["x-oss-additional-headers"]; list != "" {
		additional = strings.Split(list, ";")
	}
	canonical := canonicalRequest(r.Method, resource, signed, r.Header, additional, unsigned)
	return s.compare(values["x-oss-credential"], values["x-oss-date"], canonical, values["x-oss-signature"])
}

func (s *Server) compare(credential, when, canonical, signature string) error {
	sc, err := parseScope(credential)
	if err != nil {
		return err
	}
	if sc.keyID != s.KeyID || sc.region != s.Region || sc.product != "oss" || sc.request != "aliyun_v4_request" || sc.date != when[:8] {
		return fmt.Errorf("credential is for another scope: %s", credential)
	}
	want := hex.EncodeToString(mac(signingKey(s.Secret, sc), stringToSign(when, sc, canonical)))
	if !hmac.Equal([]byte(signature), []byte(want)) {
		return errors.New("signature does not match")
	}
	return nil
}
