-- reattach: return the pending jobs of a worker that it does not know, after a lost reply or a reconnect.
-- KEYS 1 meta
-- ARGV 1 packed {consumer, known entries, want, quiet, cursor, known ids}   -> packed {now, jobs, dropped, cursor,
-- budgets}
-- budgets: as in exchange
-- known ids: the ids of the jobs without a stream entry
-- Only jobs pending for this consumer are changed; each gets a new fencing token.
-- Bound: one page of 200 pending entries or list jobs; call again with the cursor until it is ''. A call that has found
-- `want` jobs returns a cursor too; with `want` 0 the cursor is ''.

local PENDING_ENTRY = G.rows.pending_entry
local PAGE = 200
local LISTS = 'l:' -- cursor: this prefix and a rank in list-heartbeats

-- Return whether this worker fetched the job and no other has activated it since: its score is still its
-- `lastActive`.
local function is_ours(q, consumer, id, last_active)
  local state, taken_by, renewed = unpack(G.pcall('HMGET', q.J .. id, 'state', 'takenBy', 'lastActive'))
  return state == 'active' and taken_by == consumer and tonumber(renewed) == last_active
end

-- Found jobs move to the end of the set, so the rank to continue from is lower.
local function from_lists(q, fetching, known, want, rank)
  local found = redis.call('ZRANGE', q.list_heartbeats, rank, rank + PAGE - 1, 'WITHSCORES')
  local moved, seen, full = 0, 0, false
  for i = 1, #found, 2 do
    local id = found[i]
    full = #fetching.jobs >= want
    if full then break end
    seen = seen + 1
    if not known[id] and is_ours(q, fetching.consumer, id, tonumber(found[i + 1])) then
      moved = moved + 1
      if not G.activate(q, fetching, id, '') then G.untrack_list_job(q, id) end
    end
  end
  for _, id in ipairs(fetching.from_lists) do redis.call('ZADD', q.list_heartbeats, 'XX', fetching.now_text, id) end
  if want > 0 and (full or seen == PAGE) then return LISTS .. G.int(rank + seen - moved) end
  return ''
end

local function from_stream(q, fetching, known, want, cursor)
  local pending = G.pcall('XPENDING', q.stream, G.GROUP, G.after(cursor), '+', PAGE, fetching.consumer)
  for _, p in ipairs(pending) do
    local entry = p[PENDING_ENTRY.id]
    if not known[entry] then
      if #fetching.jobs >= want then return want > 0 and cursor or '' end
      local id = G.job_at(q, entry)
      if id then G.activate(q, fetching, id, entry) else G.drop(fetching, nil, entry, 'a stream entry without a job id') end
    end
    cursor = entry
  end
  return #pending == PAGE and pending[PAGE][PENDING_ENTRY.id] or LISTS .. '0'
end

G.export('reattach', { 'allow-oom' }, G.for_workers(function(q, request)
  local want, cursor, known_ids = request.want, request.cursor, request.known_ids
  local fetching = G.fetching(q, G.now(q), request.consumer, request.quiet)
  fetching.reattach, fetching.ranked = true, G.ranks.are_used(G.settings(q))
  fetching.timeline = rawget(q, 'timeline')
  local in_lists = string.sub(cursor, 1, 2) == LISTS
  if in_lists then
    cursor = from_lists(q, fetching, G.positions(known_ids), want, tonumber(string.sub(cursor, 3)))
  else
    cursor = from_stream(q, fetching, G.positions(request.known), want, cursor)
  end
  G.promote_groups(q, fetching)
  G.ack_entries(q, fetching.acked)
  return {
    now = fetching.now, jobs = fetching.jobs, dropped = fetching.dropped, cursor = cursor,
    budgets = G.budgets.reply_part(fetching),
  }
end))
