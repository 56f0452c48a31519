package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the linker (see the Makefile).
var version string

// versionText names the program, its version and what built it.
func versionText() string {
	return fmt.Sprintf("aivory-sandbox %s (%s %s/%s)", versionNumber(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func versionNumber() string { return versionOf(debug.ReadBuildInfo()) }

// versionOf prefers what the linker was told to what the compiler recorded.
func versionOf(info *debug.BuildInfo, ok bool) string {
	switch {
	case version != "":
		return version
	case !ok:
		return "unknown"
	case info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return setting.Value
		}
	}
	return "devel"
}
