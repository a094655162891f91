package mutant

// levels are the traps of generations and incarnations.
func levels() []Mutant {
	return []Mutant{
		{
			Name: "T36", Trap: 36, File: "orchestrator/delivery.go",
			Mistake: "a guest's report is about the boot that is recorded, so it is taken for news of the operation that is pending by now",
			Edits:   edit("\tif r.State != holdfast.SandboxCreating {\n\t\treturn \"ignored: the sandbox is \" + string(r.State), nil\n\t}\n\tr.GuestSaid = kind\n", "\tr.GuestSaid = kind\n"),
			Noticed: noticed(tests("orchestrator", "TestT36_AReportAboutASupersededCreateChangesNothing")),
		},
		{
			Name: "T36 fleet", Trap: 36, File: "fleet/fold.go",
			Mistake: "facts are news in the order in which they come, whatever generation they answer",
			Edits:   edit("\tcase how == delivered && o.Generation < cur.generation, o.Generation < cur.observed:\n\t\treturn \"ignored: answers an older generation\"\n", ""),
			Noticed: noticed(tests("fleet", "TestB7_LateFactsAreRecordedAndIgnored", "TestFactsInAnyOrderNeverGoBack")),
		},
		{
			Name: "T37", Trap: 37, File: "orchestrator/delivery.go",
			Mistake: "the signature is right and the instance is known, so a guest of an earlier boot is heard about the present one",
			Edits:   edit("\t\tif report.Incarnation < r.Incarnation {\n\t\t\treturn fmt.Sprintf(\"ignored: incarnation %d is over, %d is current\", report.Incarnation, r.Incarnation), nil\n\t\t}\n", ""),
			Noticed: noticed(tests("orchestrator", "TestB7_T37_ADeliveryOfAnEarlierBootIsRecordedAndIgnored")),
		},
		{
			Name: "T38", Trap: 38, File: "fleet/judge.go",
			Mistake: "an incarnation that was only placed has nothing on its host, so nobody cleans up after the order that is still on its way",
			Edits:   edit("\t\tif cur.held {\n", "\t\tif cur.held && cur.state != holdfast.InstancePlaced {\n"),
			Noticed: noticed(tests("fleet", "TestT38_ASupersededIncarnationHoldsItsRoomUntilItsHostConfirms", "TestT38_ACreateThatWasSupersededOnItsWayLeaksNothing"), instanceModel()),
		},
		{
			Name: "T39", Trap: 39, File: "fleet/judge.go",
			Mistake: "to delete what was never seen nothing need be recorded, so the create that comes after it boots",
			Edits:   edit("\treturn ruling{next: next, write: true}, nil\n", "\treturn ruling{next: next, write: l.Desired != holdfast.DesiredAbsent}, nil\n"),
			Noticed: noticed(tests("fleet", "TestT39_RunningAfterAbsentBootsNothing"), instanceModel()),
		},
		{
			Name: "T40", Trap: 40, File: "state.go",
			Mistake: "an order is taken for as long as a tombstone is kept, and a day more: the late create finds none",
			Edits:   edit("= 6 * 24 * time.Hour", "= 8 * 24 * time.Hour"),
			Noticed: noticed(tests(".", "TestT40_AnOrderIsTooOldBeforeItsTombstoneGoes")),
		},
		{
			Name: "T40 host", Trap: 40, File: "hostagent/level.go",
			Mistake: "an order's age is only looked at where it says it, so one that does not boots what was purged",
			Edits:   edit("age > tooOld {", "age > tooOld && !l.PlacedAt.IsZero() {"),
			Noticed: noticed(tests("hostagent", "TestT40_AnOrderWithoutAnAgeIsTooOld")),
		},
	}
}

// times are the traps of clocks.
func times() []Mutant {
	return []Mutant{
		{
			Name: "T41", Trap: 41, File: "store/postgres/session.go",
			Mistake: "the database's clock is asked with now(), which is when the transaction began, before it waited for a lock",
			Edits:   edit("clock_timestamp()", "now()"),
			Noticed: noticed(tests("store/postgres", "TestT41_NowIsTheClockAfterTheWaitForALock")),
		},
		{
			Name: "T41 order", Trap: 41, File: "orchestrator/row.go",
			Mistake: "the clock is read and then the row is locked, so a claim is judged by an instant from before the wait",
			Edits: edit("\tif r, found, err = oneRow(ctx, tx, where+tx.ForUpdate(), key); err == nil {\n\t\tnow, err = tx.Now(ctx)\n\t}\n",
				"\tif now, err = tx.Now(ctx); err == nil {\n\t\tr, found, err = oneRow(ctx, tx, where+tx.ForUpdate(), key)\n\t}\n"),
			Noticed: noticed(tests("orchestrator", "TestOnPostgres/TestT41_AClaimIsJudgedByTheClockAfterTheWaitForTheLock")),
		},
		{
			Name: "T42", Trap: 42, File: "operation/runner.go",
			Mistake: "an attempt ends when this process's clock says that its claim does, so one that lags runs on beside its successor",
			Edits:   edit("return min(left, whole) - margin", "return left - margin"),
			Noticed: noticed(tests("operation", "TestA6_AnAttemptEndsAMarginBeforeItsClaim")),
		},
		{
			Name: "T43", Trap: 43, File: "orchestrator/expiry.go",
			Mistake: "the page named what is overdue, so its end is not looked at again under the lock, and a renewed sandbox is evicted",
			Edits:   edit("if r.ExpiresAt.IsZero() || r.ExpiresAt.After(now) {", "if r.ExpiresAt.IsZero() {"),
			Noticed: noticed(tests("orchestrator", "TestA11_T43_AnExtensionRacesTheEviction")),
		},
	}
}
