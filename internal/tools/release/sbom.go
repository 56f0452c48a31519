package main

import (
	"archive/tar"
	"bufio"
	"cmp"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

type sbomCommand struct {
	Program string `xor:"of" required:"" type:"existingfile" help:"A Go program."`
	Root    string `xor:"of" required:"" type:"existingfile" help:"A root file system of Debian's, a tar."`
	Name    string `required:"" help:"What it is called."`
	Version string `required:"" help:"Its version."`
	Created epoch  `required:"" env:"SOURCE_DATE_EPOCH" help:"Seconds since 1970."`
	Out     string `required:"" help:"The file to write."`
}

// Run writes the list. What it is of comes first, what it holds is sorted.
func (c *sbomCommand) Run() error {
	of := cdx.Component{Type: cdx.ComponentTypeApplication, BOMRef: "this", Name: c.Name, Version: c.Version}
	var holds []cdx.Component
	var err error
	if c.Program != "" {
		holds, err = modules(c.Program)
	} else {
		of.Type = cdx.ComponentTypeContainer
		holds, err = packages(c.Root)
	}
	if err == nil && len(holds) == 0 {
		err = errors.New("nothing is in it")
	}
	if err != nil {
		return fmt.Errorf("cannot list what is in %s: %w", cmp.Or(c.Program, c.Root), err)
	}
	slices.SortFunc(holds, func(a, b cdx.Component) int { return strings.Compare(a.PackageURL, b.PackageURL) })
	holds = slices.CompactFunc(holds, func(a, b cdx.Component) bool { return a.PackageURL == b.PackageURL })
	refs := make([]string, len(holds))
	for i := range holds {
		holds[i].BOMRef = holds[i].PackageURL
		refs[i] = holds[i].BOMRef
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: c.Created.time().Format("2006-01-02T15:04:05Z"), Component: &of}
	bom.Components = &holds
	bom.Dependencies = &[]cdx.Dependency{{Ref: of.BOMRef, Dependencies: &refs}}
	out, err := os.Create(c.Out)
	if err != nil {
		return err
	}
	return errors.Join(cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6), out.Close())
}

// modules returns what a Go program was linked from, as it says itself.
func modules(program string) ([]cdx.Component, error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, err
	}
	list := []cdx.Component{library("golang", "std", strings.TrimPrefix(info.GoVersion, "go"), "")}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := library("golang", m.Path, m.Version, "type=module")
		if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil && len(sum) > 0 {
			c.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
		}
		list = append(list, c)
	}
	return list, nil
}

// packages returns the Debian packages and the Python distributions of a root file
// system. Debian's own distributions are among both: advisories use either name.
func packages(root string) ([]cdx.Component, error) {
	in, err := os.Open(root)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	var list []cdx.Component
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		name := path.Clean("/" + h.Name)
		switch {
		case h.Typeflag != tar.TypeReg:
		case name == "/var/lib/dpkg/status":
			found, err := debian(r)
			if err != nil {
				return nil, err
			}
			list = append(list, found...)
		case isDistribution(name):
			fields, err := paragraph(bufio.NewReader(r))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if fields["Name"] == "" || fields["Version"] == "" {
				return nil, fmt.Errorf("%s has no name or version", name)
			}
			// The index takes _ and . for -.
			list = append(list, library("pypi", strings.NewReplacer("_", "-", ".", "-").Replace(strings.ToLower(fields["Name"])), fields["Version"], ""))
		}
	}
}

// isDistribution tells whether a file describes a Python distribution: wheels have
// METADATA, older ones PKG-INFO or a lone file.
func isDistribution(name string) bool {
	for _, pattern := range []string{"*.dist-info/METADATA", "*.egg-info/PKG-INFO", "*.egg-info"} {
		if dir, file, ok := strings.Cut(name, "/dist-packages/"); ok && strings.Contains(dir, "/python3") {
			if match, err := path.Match(pattern, file); err == nil && match {
				return true
			}
		}
	}
	return false
}

// debian reads dpkg's list of packages.
func debian(r io.Reader) ([]cdx.Component, error) {
	var list []cdx.Component
	in := bufio.NewReader(r)
	for {
		fields, err := paragraph(in)
		if err != nil {
			return nil, err
		}
		if len(fields) == 0 {
			return list, nil
		}
		if strings.HasSuffix(fields["Status"], " installed") {
			list = append(list, library("deb", "debian/"+fields["Package"], fields["Version"], "arch="+fields["Architecture"]))
		}
	}
}

// paragraph reads the fields up to the next blank line, each by its first line. At
// the end there are none.
func paragraph(in *bufio.Reader) (map[string]string, error) {
	fields := map[string]string{}
	for {
		line, err := in.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		text := strings.TrimRight(line, "\r\n")
		if name, value, ok := strings.Cut(text, ":"); ok && text[0] != ' ' && text[0] != '\t' {
			if _, again := fields[name]; !again {
				fields[name] = strings.TrimSpace(value)
			}
		}
		if err != nil || text == "" && len(fields) > 0 {
			return fields, nil
		}
	}
}

// library is one component with its package URL.
func library(kind, name, version, qualifiers string) cdx.Component {
	parts := strings.Split(name, "/")
	for i := range parts {
		parts[i] = escape(parts[i])
	}
	purl := "pkg:" + kind + "/" + strings.Join(parts, "/") + "@" + escape(version)
	if qualifiers != "" {
		purl += "?" + qualifiers
	}
	return cdx.Component{Type: cdx.ComponentTypeLibrary, Name: name, Version: version, PackageURL: purl}
}

// escape encodes what a part of a package URL cannot have as it is.
func escape(s string) string {
	return strings.NewReplacer("+", "%2B", "@", "%40").Replace(url.PathEscape(s))
}
