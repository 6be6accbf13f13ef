-- Fetch due jobs with a priority from the scheduled set, most urgent priority first (a source of core/fetch.lua).

local SCORED = G.rows.scored

-- All priorities, and one read that finds nothing more.
local BANDS_MAX = G.PRIORITY_MAX + 1
-- Priorities read to find out whether a job is due.
local BANDS_PEEKED = 256

-- Fetch due members of one priority from `found`. Return how many were read, how many fetched, and the next priority
-- to read if this one has no more due members. budget: how many may be read.
local function fetch_band(q, fetching, found, free, budget)
  local band, examined, fetched = G.band_of(found[SCORED.score]), 0, 0
  for i = 1, #found, 2 do
    local band_here, at = G.band_of(found[i + 1])
    if band_here ~= band then return examined, fetched, band_here end
    if at > fetching.now then
      G.note_due(fetching, at - fetching.now)
      return examined, fetched, band + 1
    end
    if fetching.bytes >= G.REPLY_BYTES or fetched >= free or examined >= budget then return examined, fetched end
    redis.call('ZREM', q.scheduled, found[i])
    if not fetching.quiet then G.emit(q.events, 'promoted', found[i]) end
    if G.activate(q, fetching, found[i], '') then fetched = fetched + 1 end
    examined = examined + 1
  end
  return examined, fetched
end

-- Fetch due members of the scheduled set that have a priority, most urgent priority first. A priority whose first
-- member is not due is skipped; the earliest of those due times is kept for the worker's timer.
G.sources.priorities = function(q, fetching, free)
  local from, budget, limit = G.int(G.BAND), free + G.REJECTIONS_MAX, free
  for _ = 1, BANDS_MAX + budget do
    if free <= 0 or budget <= 0 or fetching.bytes >= G.REPLY_BYTES then return false end
    -- Many of a priority with due jobs, one to find the next such priority.
    local found = redis.call('ZRANGEBYSCORE', q.scheduled, from, G.BELOW_SCHEDULED_END, 'WITHSCORES', 'LIMIT', 0, limit + 1)
    if #found == 0 then return true end
    local first, at = G.band_of(found[SCORED.score])
    if at <= fetching.now then found = G.in_order(q.scheduled, found, limit, first * G.BAND + fetching.now) end
    local examined, fetched, next_band = fetch_band(q, fetching, found, free, budget)
    free, budget = free - fetched, budget - examined
    if next_band then from = G.int(next_band * G.BAND) end
    limit = examined > 0 and free or 1
  end
  return false
end

-- Return whether the source would find a job. True also if there are more priorities than BANDS_PEEKED.
G.priority_is_due = function(q, now)
  local from = G.int(G.BAND)
  for _ = 1, BANDS_PEEKED do
    local band, at = G.scheduled_from(q.scheduled, from)
    if not band then return false end
    if at <= now then return true end
    from = G.int((band + 1) * G.BAND)
  end
  return true
end
