-- set_result_retention: set how many finished jobs the result sequence of the queue keeps. KEYS 1 meta
--   ARGV 1 packed {count, token, only if off 0|1}   -> 1
--   count: 0 = turn the sequence off and delete it   token: a new id of the sequence, if it was off
-- results_find: give numbers to finished jobs that have none, a part of both indexes per call. KEYS 1 meta
--   ARGV 1 packed {cursor, count}   -> packed {cursor ('' = the end of both indexes), how many were found}
--   Each call searches the newest jobs too. One whole search, from the cursor '', numbers every job that was finished
--   when it began and is still there. It ends at once if there is nothing to find (docs/design/results.md).
-- results_range: return the ends of the sequence, and where a reader that is at `start` may stop. KEYS 1 meta
--   ARGV 1 packed {start, most, target}   -> packed {id, first, last, start job, stop, stop job}
--   most, target: 0 = no limit   id: '' = the sequence is off   jobs: '' = not kept
-- results_page: return jobs by their numbers. KEYS 1 meta   ARGV 1 packed {after, stop, count, states, fields}
--   -> packed {rows {id, state, values of the fields ...}, scanned, last, removed}
--   scanned: entries read, the last of them is `last`; fewer than last - after: the others were trimmed
--   removed: how many of them have no record with that result any more, and whose result was not replaced by a later one
-- results_since: return the number before the first finish at a time or later. KEYS 1 meta
--   ARGV 1 packed {at, after, count}   -> packed {number, 1 = found or end of the sequence}
-- Bound: `count` jobs, at most COUNT_MAX, and TAIL_PAGES pages of the newest jobs of each index.

local R = G.results
local STREAM_ENTRY = G.rows.stream_entry
local RESULT = G.rows.numbered_result
local COUNT_MAX, TAIL, TAIL_PAGES = 5000, 100, 5
local JOB, AT, STATE = 2, 4, 6
local NAMES = { c = 'completed', f = 'failed' }

G.export('set_result_retention', { 'allow-oom' }, function(q, r)
  if r.count == 0 then
    redis.call('UNLINK', q.results)
    redis.call('HDEL', q.meta, 'resultsId', 'resultsKept', 'resultsLeft', 'resultsSettled')
  elseif r.only_if_off == 0 or not R.settings(q) then
    redis.call('HSET', q.meta, 'resultsKept', G.int(r.count))
    redis.call('HSETNX', q.meta, 'resultsId', r.token)
  end
  return 1
end)

-- Number the newest jobs of an index, page by page until a page has none without a number.
local function number_newest(q, settings, state)
  local found = 0
  for page = 1, TAIL_PAGES do
    local ids = redis.call('ZRANGE', q[state], -page * TAIL, -(page - 1) * TAIL - 1)
    local new = R.number_missing(q, settings, ids, state)
    found = found + new
    if new == 0 then break end
  end
  return found
end

-- Return the first and the last number of the sequence; 1 and 0 = it is empty.
local function ends(q)
  if redis.call('EXISTS', q.results) == 0 then return 1, 0 end
  local facts = G.stream_facts(q.results)
  local last = tonumber(string.sub(facts['last-generated-id'], 3)) or 0
  return last - facts['length'] + 1, last
end

-- Return how many finished jobs have no number, less the numbered ones that other clients have deleted.
local function unnumbered(q)
  local _, last = ends(q)
  local left = G.count_of(redis.call('HGET', q.meta, 'resultsLeft'))
  return redis.call('ZCARD', q.completed) + redis.call('ZCARD', q.failed) + left - last
end

local function end_of(q, state, rank) return (G.member_at(q[state], rank)) end

local function newest_has_number(q, settings, state)
  local id = end_of(q, state, -1)
  return not (id and R.unnumbered(q, settings, id, state))
end

-- Return a text that differs after each finish, also of clients that delete as many jobs as they finish.
local function ends_of_indexes(q)
  local _, last = ends(q)
  local found = { redis.call('ZCARD', q.completed), redis.call('ZCARD', q.failed), G.int(last) }
  for _, state in ipairs({ 'completed', 'failed' }) do
    found[#found + 1] = (end_of(q, state, 0) or '') .. ' ' .. (end_of(q, state, -1) or '')
  end
  return table.concat(found, ' ')
end

-- `resultsSettled` of P:meta: the number of `unnumbered` after a whole search; while it is the same, there is nothing to
-- find. For a day after a finish of another client was found, which may delete as many jobs as it finishes: 'peer', that
-- time, and the ends of the indexes after the last whole search; 'done' instead of 'peer' if they were the same before it.
local PEER = '^(%l+) (%d+) (.*)$'

local function is_settled(q, settings, count)
  local settled = redis.call('HGET', q.meta, 'resultsSettled') or ''
  local word, _, seen = string.match(settled, PEER)
  if word then return word == 'done' and seen == ends_of_indexes(q) end
  return settled == G.int(count) and newest_has_number(q, settings, 'completed') and newest_has_number(q, settings, 'failed')
end

-- expected: what `unnumbered` is at the end of a whole search if nothing else has changed it; false = it has not ended.
local function settle(q, expected, found)
  local settled, now, text = redis.call('HGET', q.meta, 'resultsSettled'), G.now(q), nil
  local _, at, seen = G.match(settled, PEER)
  if found > 0 and (settled or rawget(q, 'results_of_peers')) then
    text = 'peer ' .. G.int(now) .. ' '
  elseif expected and at and now - tonumber(at) < G.DAY_MS then
    local present = ends_of_indexes(q)
    text = (seen == present and 'done ' or 'peer ') .. at .. ' ' .. present
  elseif expected and unnumbered(q) == expected then
    text = G.int(expected)
  end
  if text and text ~= settled then redis.call('HSET', q.meta, 'resultsSettled', text) end
end

G.export('results_find', { 'allow-oom' }, function(q, r)
  local settings = R.settings(q)
  if not settings then return { cursor = '', found = 0 } end
  local count = math.min(r.count, COUNT_MAX)
  local letter, expected, cursor = string.match(r.cursor, '^([cf]):(-?%d+):(.*)$')
  if not letter then
    expected = unnumbered(q)
    if is_settled(q, settings, expected) then return { cursor = '', found = 0 } end
  end
  local state = NAMES[letter] or 'completed'
  local members, following = G.set_slice(q[state], cursor or '', count, '-inf', '+inf')
  local ids = G.members_of(members)
  local found = R.number_missing(q, settings, ids, state)
  found = found + number_newest(q, settings, 'completed') + number_newest(q, settings, 'failed')
  expected = tonumber(expected) - found -- at the end, if nothing else changes it
  local after = ''
  if following ~= '' then
    after = R.STATES[state] .. ':' .. G.int(expected) .. ':' .. following
  elseif state == 'completed' then
    after = 'f:' .. G.int(expected) .. ':'
  end
  settle(q, after == '' and expected, found)
  return { cursor = after, found = found }
end)

local function number_of(entry) return tonumber(string.sub(entry[STREAM_ENTRY.id], 3)) end
local function entry_id(number) return '0-' .. G.int(number) end

local function job_at(q, number)
  local found = number > 0 and G.first(redis.call('XRANGE', q.results, entry_id(number), entry_id(number)))
  return found and found[STREAM_ENTRY.fields][JOB] or ''
end

G.export('results_range', { 'no-writes' }, function(q, r)
  local settings, first, last = R.settings(q), ends(q)
  local stop = last
  if r.target > 0 then stop = math.min(stop, r.target) end
  if r.most > 0 then stop = math.min(stop, math.max(r.start, first - 1) + r.most) end
  return {
    id = settings and settings.id or '', first = first, last = last, start_job = job_at(q, r.start), stop = stop,
    stop_job = job_at(q, stop),
  }
end)

G.export('results_page', { 'no-writes' }, function(q, r)
  local settings = R.settings(q) or { start = ':' }
  local wanted, rows, removed, last = {}, {}, 0, r.after
  for _, state in ipairs(r.states) do wanted[R.STATES[state] or ''] = state end
  local entries = redis.call('XRANGE', q.results, '(' .. entry_id(r.after), entry_id(r.stop), 'COUNT',
    math.min(r.count, COUNT_MAX))
  -- The reply to HMGET becomes the row: id and state take the places of these two fields.
  local fields = { 'state', 'resultSeq', unpack(r.fields) }
  for i = 1, #entries do
    local entry = entries[i][STREAM_ENTRY.fields]
    local id, state = entry[JOB], wanted[entry[STATE]]
    if state then
      local h = G.pcall('HMGET', q.J .. id, unpack(fields))
      local is_in = h[RESULT.id]
      if is_in == state and h[RESULT.state] == R.mark(settings, string.sub(entries[i][STREAM_ENTRY.id], 3), entry[AT]) then
        h[RESULT.id], h[RESULT.state] = id, state
        rows[#rows + 1] = h
      elseif not is_in or state == 'completed' then -- no record, or a key of a foreign type: {err = ...}
        removed = removed + 1
      end
    end
  end
  if #entries > 0 then last = number_of(entries[#entries]) end
  return { rows = rows, scanned = #entries, last = last, removed = removed }
end)

G.export('results_since', { 'no-writes' }, function(q, r)
  local entries = redis.call('XRANGE', q.results, '(' .. entry_id(r.after), '+', 'COUNT', math.min(r.count, COUNT_MAX))
  local last = r.after
  for i = 1, #entries do
    if G.num(entries[i][STREAM_ENTRY.fields][AT]) >= r.at then
      return { number = number_of(entries[i]) - 1, done = 1 }
    end
    last = number_of(entries[i])
  end
  return { number = last, done = #entries < math.min(r.count, COUNT_MAX) and 1 or 0 }
end)
