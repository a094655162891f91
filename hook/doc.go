// Package hook reads rule files: what a webhook from outside asks for. A rule matches
// a provider's event by its name and by values at dotted paths of its payload, and
// makes of it a session, a task or a sandbox, with values of the payload put in at
// ${path}. Nothing is evaluated and no shell is involved: a value that is put into an
// argument stays one argument (contract: B9).
package hook
