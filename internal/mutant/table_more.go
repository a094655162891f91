package mutant

// again are more ways into traps that have several: of claims and deliveries.
func again() []Mutant {
	return []Mutant{
		{
			Name: "T14 look", Trap: 14, File: "orchestrator/attempt.go",
			Mistake: "between two steps an attempt looks whether a delete is wanted, and not whether its claim is still its own",
			Edits:   edit("\t\tif op.Claim != b.claim.Number || op.State.Ended() {\n\t\t\treturn &operation.FencedError{Claim: *b.claim, Operation: op}\n\t\t}\n", ""),
			Noticed: noticed(tests("orchestrator", "TestT14_AnAttemptWhoseClaimIsGoneAsksTheFleetForNothingMore")),
		},
		{
			Name: "T16 outbox", Trap: 16, File: "fleet/settle.go",
			Mistake: "what follows from an event is enqueued once its transaction has committed, and never after a crash in between",
			Edits: []Edit{
				{"\tvar ended bool\n\terr := s.db.Update(", "\tvar ended bool\n\tvar after change\n\terr := s.db.Update("},
				{"\t\tended = c.ended\n", "\t\tended, after = c.ended, c\n"},
				{"\tif err == nil && ended {\n", "\tif err == nil && ended {\n\t\terr = s.db.Update(ctx, func(tx store.Tx) error {\n\t\t\tnow, err := tx.Now(ctx)\n\t\t\tif err != nil {\n\t\t\t\treturn err\n\t\t\t}\n" +
					"\t\t\treturn enqueueExited(ctx, tx, after.next, now)\n\t\t})\n\t}\n\tif err == nil && ended {\n"},
				{"\tif c.ended {\n\t\treturn enqueueExited(ctx, tx, c.next, now)\n\t}\n\treturn nil\n", "\t_ = now\n\treturn nil\n"},
			},
			Noticed: noticed(tests("fleet", "TestT16_AnEndAndTheWordOfItAreOneTransaction")),
		},
		{
			Name: "T17 fleet", Trap: 17, File: "fleet/observed.go",
			Mistake: "a host's word on an instance that is not known yet is recorded as ignored, so its repeat is one of something done",
			Edits: edit("\t\treturn change{}, fmt.Errorf(\"incarnation %d of %s: %w\", seen.Incarnation, seen.Instance, delivery.ErrNotYet)\n",
				"\t\treturn change{}, inbox.Note(ctx, tx, source, d.ID, fmt.Sprintf(\"ignored: incarnation %d of %s is unknown\", seen.Incarnation, seen.Instance))\n"),
			Noticed: noticed(tests("fleet", "TestB7_AFactThatComesFirstIsTakenLater")),
		},
		{
			Name: "T20 guest", Trap: 20, File: "guestagent/process.go",
			Mistake: "a request id is forgotten with its process, of which only the newest are kept, so that a late repeat starts it again",
			Edits:   edit("\tfor len(s.settled) > KeptRequests {\n", "\tfor len(s.settled) > KeptProcesses {\n"),
			Noticed: noticed(tests("guestagent", "TestT20_OldProcessesGoAndTheirRequestIDsStay")),
		},
		{
			Name: "T24 inbox", Trap: 24, File: "delivery/inbox/inbox.go",
			Mistake: "a delivery is looked up and then inserted, so that a repeat which comes during the first fails instead of waiting for it",
			Edits: edit("\tres, err := tx.ExecContext(ctx, `INSERT INTO delivery (source, id, kind, received_at, body_sha256, outcome)\n\t\tVALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (source, id) DO NOTHING`,\n",
				"\tif seen, err := Seen(ctx, tx, d.Source, d.ID); err != nil || seen {\n\t\treturn false, err\n\t}\n"+
					"\tres, err := tx.ExecContext(ctx, `INSERT INTO delivery (source, id, kind, received_at, body_sha256, outcome)\n\t\tVALUES ($1, $2, $3, $4, $5, $6)`,\n"),
			Noticed: noticed(tests("delivery/inbox", "TestOnPostgres/TestT24_ARepeatThatHasNotSeenTheFirstIsARepeat")),
		},
		{
			Name: "T25 client", Trap: 25, File: "client/retry.go",
			Mistake: "the bound of the wait doubles with every attempt, until it overflows",
			Edits: edit("\tbound := longest\n\tif shift := attempts - 1; shift < 5 { // 250 ms · 2⁵ is over the bound already (trap T25)\n\t\tbound = min(firstWait<<shift, longest)\n\t}\n",
				"\tbound := min(firstWait<<(attempts-1), longest)\n"),
			Noticed: noticed(tests("client", "TestT25_NoNumberOfAttemptsAndNoAnswerMakesTheWaitLeaveItsBounds")),
		},
		{
			Name: "T25 delete", Trap: 25, File: "orchestrator/attempt.go",
			Mistake: "the sweep's pause doubles with every attempt: a delete, which is never given up, is at it without pause after 34",
			Edits:   edit("time.Second<<min(attempts, 10)", "time.Second<<attempts"),
			Noticed: noticed(tests("orchestrator", "TestT25_AnOperationIsLeftAloneForAWhileHoweverOftenItWasTried")),
		},
	}
}

// againLate are more ways into the traps of sweeps and of time.
func againLate() []Mutant {
	return []Mutant{
		{
			Name: "T29 fleet", Trap: 29, File: "fleet/sweep.go",
			Mistake: "the place of a page is compared column by column, so that what is due later with a lower id is passed over",
			Edits:   edit("AND (due_at > $2 OR due_at = $2 AND id > $3)", "AND due_at >= $2 AND id > $3"),
			Noticed: noticed(tests("fleet", "TestT29_PagesOfWhatIsOverdueMissNothing")),
		},
		{
			Name: "T30 start", Trap: 30, File: "reconcile/runner.go",
			Mistake: "every sweep runs at once when its process starts, as those of all replicas do after an update",
			Edits:   edit("\treturn time.Duration(random * float64(s.First))\n", "\treturn time.Duration(0 * random * float64(s.First))\n"),
			Noticed: noticed(tests("reconcile", "TestT30_FirstRunsOfReplicasThatStartTogetherAreApart")),
		},
		{
			Name: "T31 image", Trap: 31, File: "hostagent/steps.go",
			Mistake: "the deadline of an image's preparation counts from the attempt that asks for it, and every repeat asks anew",
			Edits:   edit("\tleft := a.config.Timing.Prepare - a.config.Clock().Sub(r.CreatedAt)\n", "\tleft := a.config.Timing.Prepare\n"),
			Noticed: noticed(tests("hostagent", "TestT31_AnImagesDeadlineCountsFromTheFirstOrder")),
		},
		{
			Name: "T31 boot", Trap: 31, File: "hostagent/await.go",
			Mistake: "a guest has the whole time to become ready after each restart of its host's agent",
			Edits:   edit("time.NewTimer(max(0, limit-a.config.Clock().Sub(since)))", "time.NewTimer(max(0, limit-0*a.config.Clock().Sub(since)))"),
			Noticed: noticed(tests("hostagent", "TestT31_ABootsDeadlineCountsFromItsStart")),
		},
		{
			Name: "T32 address", Trap: 32, File: "fleet/ensure.go",
			Mistake: "whoever answers at a host's address is that host",
			Edits:   edit("\tif err == nil && seen.Host != \"\" && seen.Host != r.host {\n", "\tif err == nil && seen.Host != \"\" && seen.Host != r.host && seen.Instance == \"\" {\n"),
			Noticed: noticed(tests("fleet", "TestT27_AnotherHostAtTheAddressIsNoAnswer")),
		},
		{
			Name: "T37 host", Trap: 37, File: "hostagent/await.go",
			Mistake: "a guest's word that it is ready is taken for the boot that is waited for, whichever boot said it",
			Edits:   edit("\t\t\tif booting && said == r.Ref.Incarnation {\n", "\t\t\tif booting && said > 0 {\n"),
			Noticed: noticed(tests("hostagent", "TestT37_AnEarlierBootsReadyMakesNoOtherRunning")),
		},
		{
			Name: "T41 outbox", Trap: 41, File: "delivery/outbox/claim.go",
			Mistake: "claims are judged by each replica's own clock, although the transaction knows the database's",
			Edits:   edit("\tif c, ok := tx.(clock); ok {\n", "\tif c, ok := tx.(clock); ok && d.config.Clock == nil {\n"),
			Noticed: noticed(tests("delivery/outbox", "TestT41_ATransactionThatKnowsTheTimeIsAsked")),
		},
		{
			Name: "T42 guest", Trap: 42, File: "orchestrator/delivery.go",
			Mistake: "a guest's timestamp is held to the usual tolerance, so one that was frozen for an hour, or whose clock is off, is refused for good",
			Edits:   edit("\t\tName:    delivery.InstanceSource(instance, incarnation),\n", "\t\tName:      delivery.InstanceSource(instance, incarnation),\n\t\tTolerance: 5 * time.Minute,\n"),
			Noticed: noticed(tests("orchestrator", "TestT42_AGuestWhoseClockIsOffIsHeard")),
		},
		{
			Name: "T43 lock", Trap: 43, File: "orchestrator/row.go",
			Mistake: "the row that a decision depends on is read and not locked, so that an extension and the eviction both win",
			Edits:   edit("oneRow(ctx, tx, where+tx.ForUpdate(), key)", "oneRow(ctx, tx, where, key)"),
			Noticed: noticed(tests("orchestrator", "TestOnPostgres/TestT41_AClaimIsJudgedByTheClockAfterTheWaitForTheLock")),
		},
		{
			Name: "T46 closing", Trap: 46, File: "operation/runner.go",
			Mistake: "what an attempt did is recorded under its own context, which has ended when its claim runs out",
			Edits:   edit("context.WithTimeout(context.WithoutCancel(ctx), within)", "context.WithTimeout(ctx, within)"),
			Noticed: noticed(tests("operation", "TestA6_AnAttemptEndsAMarginBeforeItsClaim", "TestA2_AnAttemptRunsOnWhenItsCallerLeaves")),
		},
		{
			Name: "T52 kept", Trap: 52, File: "orchestrator/lineage.go",
			Mistake: "what a restored database does not know is destroyed like any orphan, as soon as it says that it was recovered",
			Edits:   edit("\tcase at.Keeps(born):\n\t\tp.kept = append(p.kept, seen)\n", "\tcase at.Keeps(born):\n\t\tp.levels = append(p.levels, level)\n"),
			Noticed: noticed(tests("orchestrator", "TestT52_ARestoredDatabaseWaitsForAPersonsWord")),
		},
		{
			Name: "T53 shards", Trap: 53, File: "orchestrator/quota.go",
			Mistake: "a quota's room is shared out anew from shards that others still change",
			Edits:   edit("FROM quota_shard WHERE project = $1 ORDER BY shard`+tx.ForUpdate(), string(id))", "FROM quota_shard WHERE project = $1 ORDER BY shard`, string(id))"),
			Noticed: noticed(tests("orchestrator", "TestOnPostgres/TestT53_TheLastRoomOfAProjectIsTakenOnce")),
		},
	}
}
