// Package rpc is the API's edge (H1): handlers that offer the root's services by
// Connect, gRPC, gRPC-Web and JSON on one port, and dialers that make the same
// services of a remote server. It is the only place where wire types and
// statuses meet domain types and errors; each noun has its file, and errors.go
// has the one table of codes.
package rpc
