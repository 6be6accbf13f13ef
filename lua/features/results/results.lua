-- Number finished jobs in the order in which the server learns of them, for readers that must not miss one
-- (docs/design/results.md). Off until a reader turns it on.
-- P:results is a stream with the ids 0-1, 0-2, …: one entry per finish, with the fields `job`, `at` (the record's
-- finishedOn) and `state` (c = completed, f = failed). The field `resultSeq` of a record is
-- `<id of the sequence>:<number>@<finishedOn>`: the finish with that time has that number.

local R = G.results
local AT_MAX = 20 -- digits of a time; a longer text of a foreign client is cut

R.COMPLETED, R.FAILED = 'c', 'f'
R.STATES = { completed = R.COMPLETED, failed = R.FAILED }

local function read_settings(q, known_off)
  if known_off then return false end
  local found = G.pcall('HMGET', q.meta, 'resultsId', 'resultsKept')
  if found.err then return false end
  local id, kept = unpack(found)
  return id and kept and { id = id, start = id .. ':', kept = G.int(math.max(1, G.count_of(kept, 1))) }
end

-- Return the settings of the sequence {id, kept}, or false if it is off; read once per call. kept: about how many
-- entries are kept. known_off: the caller has read that it is off.
R.settings = function(q, known_off)
  return G.once(q, 'results_settings', read_settings, known_off)
end

R.time_of = function(finished_on) return string.sub(finished_on, 1, AT_MAX) end

-- Return whether the record's field `resultSeq` is a number of the finish at the time `at`.
R.is_numbered = function(settings, mark, at)
  local start = settings.start
  return mark and string.sub(mark, 1, #start) == start and string.sub(mark, -#at - 1) == '@' .. at
end

-- Return the value of `resultSeq` of a finish.
R.mark = function(settings, number, at) return settings.start .. number .. '@' .. at end

-- Give a finish the next number. has_record: write the number to the job's record.
-- Without `must`, a key of a foreign type is ignored: the job stays without a number, and the search of a reader finds it.
R.append = function(q, settings, id, state, at, has_record, must)
  local call = must and redis.call or G.pcall
  local entry = call('XADD', q.results, 'MAXLEN', '~', settings.kept, '0-*', 'job', id, 'at', at, 'state', state)
  if type(entry) ~= 'string' or not has_record then return end
  G.set(q, id, 'resultSeq', R.mark(settings, string.sub(entry, 3), at))
end

-- Return whether the key of the sequence is there without the sequence, or is of a foreign type.
R.is_orphan = function(q)
  local kind = redis.call('TYPE', q.results).ok
  return kind ~= 'none' and (kind ~= 'stream' or not R.settings(q))
end

-- Delete the key of a sequence that is off, but no key of a foreign type. Return how many.
R.repair = function(q)
  if redis.call('TYPE', q.results).ok ~= 'stream' or R.settings(q) then return 0 end
  return redis.call('UNLINK', q.results)
end

-- A job has failed outside of a worker's report.
R.failed = function(q, id, at)
  local settings = R.settings(q)
  if settings then R.append(q, settings, id, R.FAILED, at, true) end
end

-- Finished jobs with a number have left the index through this library.
R.left = function(q, count)
  if count > 0 and R.settings(q) then G.bump(q.meta, 'resultsLeft', count) end
end

-- Finished jobs are about to be deleted.
R.before_delete = function(q, ids)
  local settings = #ids > 0 and R.settings(q)
  if not settings then return end
  R.number_missing(q, settings, ids, 'completed')
  R.number_missing(q, settings, ids, 'failed')
  R.left(q, #ids)
end

-- Return the time of a job that has finished in `state` and has no number, and its last fencing token; nil = it has one.
R.unnumbered = function(q, settings, id, state)
  local h = G.pcall('HMGET', q.J .. id, 'state', 'finishedOn', 'resultSeq', 'fence')
  local is_in, finished_on, mark, fence = unpack(h)
  if h.err or is_in ~= state then return nil end
  local at = R.time_of(finished_on or '')
  if not R.is_numbered(settings, mark, at) then return at, fence end
end

-- Number those of the jobs that have finished in `state` and have no number: clients in other languages wrote no
-- number. Return how many.
R.number_missing = function(q, settings, ids, state)
  local found, letter = 0, R.STATES[state]
  for i = 1, #ids do
    local at, fence = R.unnumbered(q, settings, ids[i], state)
    if at then
      R.append(q, settings, ids[i], letter, at, true, true)
      if not fence then q.results_of_peers = true end -- each attempt of our library has one
      found = found + 1
    end
  end
  return found
end
