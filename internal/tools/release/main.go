// Command release makes what scripts/release.sh needs beyond a shell: images without
// an engine, and lists of what is in them. The same input gives the same bytes.
package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

type commands struct {
	Image imageCommand `cmd:"" help:"Make an image of a root file system and the settings of a Dockerfile."`
	SBOM  sbomCommand  `cmd:"" name:"sbom" help:"List the modules of a Go program, or the packages of a root file system, as CycloneDX."`
	Push  pushCommand  `cmd:"" help:"Push images of several platforms to a registry under one name."`
}

func main() {
	var c commands
	k := kong.Parse(&c, kong.Name("release"))
	if err := k.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// epoch is a time in whole seconds since 1970, as SOURCE_DATE_EPOCH has it.
type epoch int64

func (e epoch) time() time.Time { return time.Unix(int64(e), 0).UTC() }

// platform is such as linux/arm64.
type platform string

func (p platform) split() (system, machine string, err error) {
	system, machine, ok := strings.Cut(string(p), "/")
	if !ok || system == "" || machine == "" || strings.Contains(machine, "/") {
		return "", "", fmt.Errorf("%q is no platform such as linux/amd64", string(p))
	}
	return system, machine, nil
}
