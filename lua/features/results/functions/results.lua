-- set_result_retention: set how many finished jobs the result sequence of the queue keeps. KEYS 1 meta
--   ARGV 1 packed {count, token, only if off 0|1}   -> 1
--   count: 0 = turn the sequence off and delete it   token: a new id of the sequence, if it was off
-- results_find: give numbers to finished jobs that have none, a part of both indexes per call. KEYS 1 meta
--   ARGV 1 packed {cursor, count}   -> packed {cursor ('' = the end of both indexes), how many were found}
--   Each call searches the newest jobs too. One whole search, from the cursor '', numbers every job that was finished
--   when it began and is still there.
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
    redis.call('HDEL', q.meta, 'resultsId', 'resultsKept')
  elseif r.only_if_off == 0 or not R.settings(q) then
    redis.call('HSET', q.meta, 'resultsKept', G.int(r.count))
    redis.call('HSETNX', q.meta, 'resultsId', r.token)
  end
  return 1
end)

-- Return up to `count` members of an index from the cursor on, flat with their scores. If the job at the cursor has
-- left, all members with its score are returned again.
local function index_slice(index, cursor, count)
  local score, last = string.match(cursor, '^(.-)@(.*)$')
  if not score then return redis.call('ZRANGE', index, 0, count - 1, 'WITHSCORES') end
  if redis.call('ZSCORE', index, last) ~= score then
    return redis.call('ZRANGEBYSCORE', index, score, '+inf', 'WITHSCORES', 'LIMIT', 0, count)
  end
  local rank = redis.call('ZRANK', index, last)
  return redis.call('ZRANGE', index, rank + 1, rank + count, 'WITHSCORES')
end

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

G.export('results_find', { 'allow-oom' }, function(q, r)
  local settings = R.settings(q)
  if not settings then return G.replies.results_find({ cursor = '', found = 0 }) end
  local count = math.min(r.count, COUNT_MAX)
  local letter, cursor = string.match(r.cursor, '^([cf]):(.*)$')
  local state = NAMES[letter] or 'completed'
  local members = index_slice(q[state], cursor or '', count)
  local ids = {}
  for i = 1, #members, 2 do ids[#ids + 1] = members[i] end
  local found = R.number_missing(q, settings, ids, state)
  local after = ''
  if #ids == count then
    after = R.STATES[state] .. ':' .. members[#members] .. '@' .. members[#members - 1]
  elseif state == 'completed' then
    after = 'f:'
  end
  found = found + number_newest(q, settings, 'completed') + number_newest(q, settings, 'failed')
  return G.replies.results_find({ cursor = after, found = found })
end)

-- Return the first and the last number of the sequence; 1 and 0 = it is empty.
local function ends(q)
  if redis.call('EXISTS', q.results) == 0 then return 1, 0 end
  local info, facts = redis.call('XINFO', 'STREAM', q.results), {}
  for i = 1, #info, 2 do facts[info[i]] = info[i + 1] end
  local last = tonumber(string.sub(facts['last-generated-id'], 3)) or 0
  return last - facts['length'] + 1, last
end

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
  return G.replies.results_range({
    id = settings and settings.id or '', first = first, last = last, start_job = job_at(q, r.start), stop = stop,
    stop_job = job_at(q, stop),
  })
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
  if #entries > 0 then last = tonumber(string.sub(entries[#entries][STREAM_ENTRY.id], 3)) end
  return G.replies.results_page({ rows = rows, scanned = #entries, last = last, removed = removed })
end)

G.export('results_since', { 'no-writes' }, function(q, r)
  local entries = redis.call('XRANGE', q.results, '(' .. entry_id(r.after), '+', 'COUNT', math.min(r.count, COUNT_MAX))
  local last = r.after
  for i = 1, #entries do
    if G.num(entries[i][STREAM_ENTRY.fields][AT]) >= r.at then
      return G.replies.results_since({ number = tonumber(string.sub(entries[i][STREAM_ENTRY.id], 3)) - 1, done = 1 })
    end
    last = tonumber(string.sub(entries[i][STREAM_ENTRY.id], 3))
  end
  return G.replies.results_since({ number = last, done = #entries < math.min(r.count, COUNT_MAX) and 1 or 0 })
end)
