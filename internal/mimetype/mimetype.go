// Package mimetype names the media type of a file by its name alone.
//
// The rules and the table are those of Python's mimetypes module without a
// system table, because clients of the service have always seen its answers,
// with registered types added for common formats that it does not know.
package mimetype

import "strings"

// Unknown is the type of a file whose name says nothing.
const Unknown = "application/octet-stream"

// compressions are suffixes that say how a file is packed, not what it is.
// Unlike the types they are case-sensitive: ".Z" is not ".z".
var compressions = map[string]bool{".gz": true, ".Z": true, ".bz2": true, ".xz": true, ".br": true}

// aliases are suffixes that stand for two others.
var aliases = map[string]string{
	".svgz": ".svg.gz", ".tgz": ".tar.gz", ".taz": ".tar.gz", ".tz": ".tar.gz",
	".tbz2": ".tar.bz2", ".txz": ".tar.xz",
}

// ByName returns the media type for a file name without directories. A packed
// file has the type of what is inside ("a.tar.gz" is application/x-tar), so
// one that is packed and nothing else ("a.gz") is Unknown.
func ByName(name string) string {
	base, ext := split(name)
	for {
		long, ok := aliases[strings.ToLower(ext)]
		if !ok {
			break
		}
		base, ext = split(base + long)
	}
	if compressions[ext] {
		_, ext = split(base)
	}
	if t, ok := types[strings.ToLower(ext)]; ok {
		return t
	}
	return Unknown
}

// split cuts the last extension off, dot included. Dots that a name begins
// with are part of it: ".profile" has no extension.
func split(name string) (base, ext string) {
	i := strings.LastIndexByte(name, '.')
	if i < 0 || strings.Trim(name[:i], ".") == "" {
		return name, ""
	}
	return name[:i], name[i:]
}
