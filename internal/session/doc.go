// Package session keeps conversations' runners: admission and limits, order
// within a session, the idle clock, archive and restore, and recovery.
package session
