package oci

// NeedControllers changes which cgroup controllers a host must have.
func NeedControllers(names ...string) { needed = names }
