"""Recurrence: rules, cron expressions and local times as pure functions between numbers and moments."""
