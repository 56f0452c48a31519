// Package apitest holds answers of a service against the description of its
// interface. It is for tests alone.
package apitest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// Description is a description in OpenAPI that is itself in order.
type Description struct{ *openapi3.T }

// Load reads a description, in YAML, and checks it, its examples included.
func Load(text []byte) (Description, error) {
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		return Description{}, fmt.Errorf("cannot read the description: %w", err)
	}
	if err := doc.Validate(context.Background(), openapi3.EnableExamplesValidation()); err != nil {
		return Description{}, fmt.Errorf("the description is not in order: %w", err)
	}
	return Description{doc}, nil
}

// Find returns the description of a method on a path, and the path as it is
// described; nil where there is none.
func (d Description) Find(method, path string) (op *openapi3.Operation, pattern string, item *openapi3.PathItem) {
	for pattern, item := range d.Paths.Map() {
		if covers(pattern, path) {
			return item.GetOperation(method), pattern, item
		}
	}
	return nil, "", nil
}

// covers tells whether a path is one of a pattern, whose last segment may be a
// variable.
func covers(pattern, path string) bool {
	fixed, _, variable := strings.Cut(pattern, "{")
	if !variable {
		return pattern == path
	}
	rest, ok := strings.CutPrefix(path, fixed)
	return ok && rest != "" && !strings.Contains(rest, "/")
}

// Check holds an answer against the description and reports whether it is
// described at all: what leads to no operation is not.
func (d Description) Check(method, path string, status int, header http.Header, body []byte) (described bool, err error) {
	op, pattern, item := d.Find(method, path)
	if op == nil {
		return false, nil
	}
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return true, fmt.Errorf("%s %s: status %d: content type: %w", method, path, status, err)
	}
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: &http.Request{Method: method, URL: &url.URL{Path: path}},
			Route:   &routers.Route{Spec: d.T, Path: pattern, PathItem: item, Method: method, Operation: op},
		},
		Status: status, Header: header, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{
			IncludeResponseStatus: true, MultiError: true,
			// Of what is no JSON the type is described, and no more.
			ExcludeResponseBody: kind != "application/json",
		},
	}
	if err := openapi3filter.ValidateResponse(context.Background(), input); err != nil {
		return true, fmt.Errorf("%s %s: status %d is not as described: %w", method, path, status, err)
	}
	if r := op.Responses.Status(status); r.Value.Content.Get(kind) == nil {
		return true, fmt.Errorf("%s %s: status %d: content type %s is not described", method, path, status, kind)
	}
	return true, nil
}
