-- broadcast_exchange: report finished messages, promote due ones and fetch messages for a subscription.
-- KEYS 1 meta
-- ARGV 1 packed {consumer, want, finished, quiet, no_metrics, limiter, group, patterns, start, idle, tokens}
-- -> packed {now, statuses, messages, next_due, flags, dropped, marks}   all but marks as in exchange
--   patterns: Lua patterns, one of which a subject must match, or false   start: where a missing group begins
--   marks: last entry ids of the stream and of the wake stream, for the blocking read of an idle worker; false = not
--   needed
-- Bound: 1,000 messages; 2,000 entries of other subscriptions.
local STREAM_ENTRY = G.rows.stream_entry
local TOKENS = G.rows.tokens
local S = G.subscriptions

local PROMOTE_MAX, WANT_MAX = 200, 1000
local OUTBOX_PENDING = 8

local function last_of(key)
  local found = G.pcall('XREVRANGE', key, '+', '-', 'COUNT', 1)
  local last = G.first(found)
  return last and last[STREAM_ENTRY.id] or '0-0'
end

local function fetch_within_limits(q, t, want, limiter, tokens)
  local limits = G.limits(q, t, want, limiter, tokens, t.settings)
  if limits.concurrency and not limits.paused then -- the limit applies per subscription
    limits.want = math.min(limits.want, math.max(0, limits.concurrency - S.active_count(q, t.group)))
    limits.limited = limits.want < want
  end
  return G.fetch_within(q, t, limits, S.fetch)
end

G.export('broadcast_exchange', { 'allow-oom' }, function(q, args)
  local now = G.now(q)
  local settings, rejected = G.settings(q, now)
  if rejected then return rejected end
  local r = G.calls.broadcast_exchange(args)
  local want, finished = math.min(r.want, WANT_MAX), r.finished
  if r.idle and redis.call('ZSCORE', q.invalidated, r.idle) then want = 0 end
  local t = S.fetching(now, r.consumer, r.group, r.patterns, r.start, r.quiet)
  t.settings = settings
  local statuses = #finished > 0 and S.finish(q, now, r.consumer, r.group, finished, r.quiet, r.no_metrics) or {}
  local tokens = r.tokens
  if tokens then G.count_tokens(q, tokens[TOKENS.duration], now, tokens[TOKENS.counts], statuses) end
  local next_due = G.promote_due(q, now, PROMOTE_MAX, r.quiet)
  if rawget(q, 'sweeps') then next_due = 0 end
  local flags = 0
  if want > 0 then
    flags = fetch_within_limits(q, t, want, r.limiter, tokens)
    S.ack(q, t.group, t.acked, t.own)
  elseif #finished > 0 and G.has_concurrency(settings) then
    G.wake(q, 1) -- a slot is free, and this worker does not use it
  end
  local marks = flags ~= 0 and { last_of(q.stream), last_of(q.wake) } or false
  if G.outbox_pending(q) then flags = flags + OUTBOX_PENDING end
  flags = flags + (rawget(q, 'schedulers_flag') or 0)
  return {
    now = now, statuses = statuses, jobs = t.jobs, next_due = G.earlier(next_due, t.next_due), flags = flags,
    dropped = t.dropped, marks = marks,
  }
end, true)
