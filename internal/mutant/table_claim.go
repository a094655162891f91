package mutant

// claims are the traps of who may act, and who may still write.
func claims() []Mutant {
	return []Mutant{
		{
			Name: "T11", Trap: 11, File: "operation/claim.go",
			Mistake: "the fence holds the operation's state and not the claim's number, so an expired holder writes after its successor took over",
			Edits: edit("const current = ` WHERE id = $1 AND claim = $2 AND holder = $3 AND state = 'PENDING'`",
				"const current = ` WHERE id = $1 AND claim >= $2 AND $3 <> '' AND state = 'PENDING'`"),
			Noticed: noticed(tests("operation", "TestT11_T14_AnExpiredHolderThatComesBackLateChangesNothing")),
		},
		{
			Name: "T12", Trap: 12, File: "hostagent/level.go",
			Mistake: "a lower generation is refused of what has ended alone: rows are fenced, and an old order still moves the runtime",
			Edits:   edit("if l.Generation < known.Generation {", "if l.Generation < known.Generation && known.final() {"),
			Noticed: noticed(tests("hostagent", "TestLevelsAreJudgedByIncarnationAndGeneration"), hostModel()),
		},
		{
			Name: "T13", Trap: 13, File: "operation/runner.go",
			Mistake: "an earlier attempt of this process was told to stop, so the next begins at once beside it",
			Edits: edit("\t\tif earlier.claim.Number < claim.Number {\n\t\t\tearlier.cancel(ErrClaimOver)\n\t\t}\n\t\treturn nil, nil, ErrStillRunning\n",
				"\t\tif earlier.claim.Number >= claim.Number {\n\t\t\treturn nil, nil, ErrStillRunning\n\t\t}\n\t\tearlier.cancel(ErrClaimOver)\n"),
			Noticed: noticed(tests("operation", "TestT13_NoAttemptRunsBesideAnEarlierOneOfTheSameProcess")),
		},
		{
			Name: "T14", Trap: 14, File: "orchestrator/attempt.go",
			Mistake: "the row is as it was read, so nobody was here: the operation is ended whatever the claim, by one that slept through its own",
			Edits: edit("\t\treturn operation.Finish(ctx, tx, now, *b.claim, operation.Outcome{State: operation.StateDone})\n\t})\n\treturn r, stood, err",
				"\t\t_, err = operation.End(ctx, tx, now, b.op.ID, operation.Outcome{State: operation.StateDone})\n\t\treturn err\n\t})\n\treturn r, stood, err"),
			Noticed: noticed(tests("orchestrator", "TestA6_T11_AnExpiredHoldersLateFinishChangesNothing", "TestT14_AnAttemptThatSleptThroughItsClaimEndsNothing")),
		},
		{
			Name: "T15", Trap: 15, File: "operation/claim.go",
			Mistake: "the way out of a failed attempt clears the claim of the operation, whoever has it by now",
			Edits: edit("last_answered_at = $9 * $4`+current,",
				"last_answered_at = $9 * $4 WHERE id = $1 AND claim >= $2 AND $3 <> '' AND state = 'PENDING'`,"),
			Noticed: noticed(tests("operation", "TestT15_AClaimIsReleasedOnce", "TestT11_T14_AnExpiredHolderThatComesBackLateChangesNothing")),
		},
	}
}
